// One slot of a chaos run's clients: a worker::Client that pushes without pause, dies when it is told to, and comes
// back as another.
//
// Thread-safe. The pushes are made by a thread of its own.
//
// The destructor waits for the thread, and with it for a connection under way: coordinator.join_timeout_ms bounds that.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "proto/config.pb.h"
#include "tests/chaos/ledger.h"
#include "tests/chaos/progress.h"
#include "tests/chaos/workload.h"
#include "worker/client/client.h"

namespace lodestone::chaos {

class PushingClient {
 public:
  // What all clients of a run share; everything must outlive them.
  struct Run {
    v1::Config config;
    const Workload* workload = nullptr;
    Ledger* ledger = nullptr;
    Progress* progress = nullptr;
  };
  PushingClient(const Run* run, uint32_t slot);
  ~PushingClient();
  PushingClient(const PushingClient&) = delete;
  PushingClient& operator=(const PushingClient&) = delete;

  // It starts paused.
  void Resume();
  void Pause();
  // Pushes that are not answered.
  size_t in_flight() const;
  bool connected() const;

  // The client sends `pushes` last pushes, waits for `answers` answers to them, and dies. REQUIRES: it is not dying;
  // answers < pushes <= kLastPushesMax. At most once between two checks of the ledger.
  void Die(uint32_t pushes, uint32_t answers);
  // When the next client of the slot had its first acknowledgement, since the death it was last told; nullopt before.
  std::optional<int64_t> revived_ms() const;

  // Not OK once it has failed for good, which ends it.
  absl::Status failure() const;

 private:
  // A death to come.
  struct Death {
    uint32_t pushes = 0;
    uint32_t answers = 0;
    uint32_t sent = 0;
    uint32_t answered = 0;
  };
  enum class Turn { kSteady, kLast, kDie, kStop };

  void Loop();
  // One client, from its connection to its end.
  void Live();
  absl::Status Connect();
  Turn AwaitTurn();
  Turn NextTurn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Send(Push push);
  absl::Status Hand(const std::shared_ptr<const Push>& push, int64_t sent_ms);
  void OnDone(const Push& push, int64_t sent_ms, const absl::Status& status);
  void Fail(const absl::Status& status);

  // Constant.
  const Run* const run_;
  const uint32_t slot_;

  // The thread's own.
  std::unique_ptr<worker::Client> client_;
  std::vector<worker::TableHandle> tables_;
  std::vector<float> dense_;  // Gradients, all 0 between two pushes.
  std::vector<float> large_;
  uint64_t next_number_ = 0;

  mutable Mutex mu_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool paused_ ABSL_GUARDED_BY(mu_) = true;
  bool connected_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;                // The client is being destroyed.
  std::map<uint64_t, bool> in_flight_ ABSL_GUARDED_BY(mu_);  // By number; whether it is a last one.
  std::optional<Death> death_ ABSL_GUARDED_BY(mu_);
  bool reviving_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<int64_t> revived_ms_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone::chaos
