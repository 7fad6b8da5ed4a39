// Worker processes that count: sample i has the key i and nothing else, and nothing else is trained, so that the weight
// of key i says how often the sample was, as long as that is some thousand times. They lease ranges (train.sharing:
// ranges), so any number of them may run.
//
// Single-threaded, as PsCluster, but for Counts. The processes end with this object; the files stay.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "tests/chaos/ps_cluster.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone::chaos {

class CountingWorkers {
 public:
  static constexpr uint64_t kSamples = 3200, kBatch = 20;
  static constexpr uint64_t kBatchesPerEpoch = kSamples / kBatch;
  static constexpr char kTables[] = "linear,bias";  // Of the model.

  struct Options {
    std::string worker_binary;
    std::string folder;             // For the samples, the configuration and what workers say; exists.
    uint32_t epochs = 1;            // Of a run.
    std::vector<std::string> sets;  // Further settings of the workers, "a.b=VALUE".
  };
  // `cluster` must outlive this. Writes the samples.
  CountingWorkers(const PsCluster* cluster, Options options);

  // Starts one more, with these settings beside those of Options.
  absl::Status Start(const std::vector<std::string>& sets = {});
  // What a worker that has ended was like.
  struct End {
    std::string outcome;  // As Child::Outcome.
    int exit_code = 0;    // -1: a signal ended it,
    int signal = 0;       // this one.
  };
  // Reads what the workers say. Those that have ended since are returned, and are no longer among running().
  std::vector<End> Pump();
  const std::vector<std::unique_ptr<psctl::Child>>& running() const { return running_; }

  // What the coordinator knows of the newest run; empty while it does not answer.
  v1::RangeState State(int timeout_ms = 2000) const;
  // Batches of it that are known to be applied.
  static uint64_t Done(const v1::RangeState& state);

  // How often samples were trained, as an observer reads it: the number of samples for each number of times; -1: a
  // weight that no number of times explains. `times_max`: that is to be told apart. Blocks. Thread-safe.
  absl::StatusOr<std::map<int64_t, uint64_t>> Counts(uint64_t times_max) const;

 private:
  const PsCluster* const cluster_;
  const Options options_;
  const std::string config_file_;
  std::ofstream log_;
  uint32_t started_ = 0;
  std::vector<std::unique_ptr<psctl::Child>> running_;
};

}  // namespace lodestone::chaos
