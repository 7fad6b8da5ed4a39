// One slot of a chaos run's clients that record: a worker::Client that makes one operation on a counter at a time, as
// the recorder orders, and writes down when it asked and what it was answered. Now and then it dies of one, and comes
// back as another.
//
// Thread-safe. The calls are made by a thread of its own; the destructor waits for it, as PushingClient's.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "proto/config.pb.h"
#include "proto/table.pb.h"
#include "tests/chaos/ledger.h"
#include "tests/chaos/recorder.h"
#include "worker/client/client.h"

namespace lodestone::chaos {

class RecordingClient {
 public:
  // What all of them share; everything must outlive them.
  struct Run {
    v1::Config config;
    uint32_t slots = 1;
    Recorder* recorder = nullptr;
    Ledger* ledger = nullptr;  // Counts their pushes in the shards' versions.
  };
  RecordingClient(const Run* run, uint32_t slot);
  ~RecordingClient();
  RecordingClient(const RecordingClient&) = delete;
  RecordingClient& operator=(const RecordingClient&) = delete;

  // It starts paused.
  void Resume();
  void Pause();
  // Nothing of it is under way.
  bool idle() const;
  bool connected() const;
  // Not OK once it has failed for good, which ends it.
  absl::Status failure() const;

 private:
  // The answer to the operation that is under way.
  struct Answer {
    absl::Status status;
    Version version = 0;
  };

  void Loop();
  // One client, from its connection to its end.
  absl::Status Live();
  absl::Status Connect();
  // Waits until it may make an operation; false: it shall end.
  bool AwaitTurn();
  // Makes an operation. False: that was the client's last one.
  absl::StatusOr<bool> Make(Recorder::Order order);
  absl::Status Ask(const Recorder::Order& order);
  void OnAnswer(const absl::Status& status, Version version);
  void Record(const Recorder::Order& order);

  // Constant.
  const Run* const run_;

  // The thread's own.
  uint64_t session_;
  std::unique_ptr<worker::Client> client_;
  std::vector<worker::TableHandle> tables_;
  uint64_t pushes_ = 0;
  Key keys_[2];      // Of what is under way: the counter's, and its twin's.
  float values_[2];  // What is pushed to them, or was pulled.

  mutable Mutex mu_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool paused_ ABSL_GUARDED_BY(mu_) = true;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  int64_t answered_ns_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<Answer> answer_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone::chaos
