// The histories of a chaos run: hands out operations on counters, a few rows to a history, and writes down what became
// of them. A history is judged, and written to a file, once all its operations are over.
//
// Thread-safe. The thread that records the last operation of a history judges it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/types.h"
#include "tests/chaos/history.h"
#include "tests/chaos/judgement.h"

namespace lodestone::chaos {

class Recorder {
 public:
  struct Options {
    uint64_t seed = 1;
    uint32_t shards = 16;
    uint32_t clients = 1;        // Each makes one operation at a time.
    uint32_t rows = 4;           // Of a history.
    uint64_t operations = 5000;  // Of a history.
    uint32_t open_max = 8;       // On a row: REQUIRES: open_max >= clients.
    std::string folder;          // For "history-0.jsonl" and so on; empty: they are not kept.
  };
  explicit Recorder(Options options) : options_(std::move(options)) {}

  static int64_t NowNs();

  // An operation for a client to make. The counter's rows are those of `key` and of `twin`.
  struct Order {
    uint64_t history = 0;
    Operation operation;  // Without times and results.
    Key key = 0;
    Key twin = 0;
    bool dies = false;  // The client shall not wait for the answer longer than
    int64_t dies_after_us = 0;
  };
  Order Next(uint64_t client);
  // What became of it. Each order once.
  void Record(uint64_t history, const Operation& operation);

  // Something that the injector does from now on. Returns its number.
  size_t BeginFault(const std::string& what, bool kills);
  void EndFault(size_t fault);

  uint64_t finished() const;
  // Judges the histories that are not finished, too. REQUIRES: nobody records any more.
  Judgement Conclude();

 private:
  struct Open {
    std::vector<Operation> operations;
    uint64_t given = 0;
    std::vector<uint32_t> deaths;  // By row.
  };
  // With the faults of its time.
  History Finish(Open open) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void JudgeAndKeep(uint64_t number, const History& history);

  const Options options_;

  mutable Mutex mu_;
  uint64_t newest_ ABSL_GUARDED_BY(mu_) = 0;            // That operations are given of.
  std::map<uint64_t, Open> open_ ABSL_GUARDED_BY(mu_);  // By number.
  std::vector<FaultMark> faults_ ABSL_GUARDED_BY(mu_);
  Judgement judgement_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::chaos
