// A pause of training, which a thread of this object's keeps up for as long as it lives (Admin.PauseTraining). An
// interrupt does not end the process meanwhile: training is to go on first.
//
// Not thread-safe. One at a time.
#pragma once

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "tools/psctl/client/interrupt_watch.h"

namespace lodestone::psctl {

class HeldPause {
 public:
  // Of the cluster of the ps at `address`.
  HeldPause(std::string address, int timeout_ms);
  // Workers go on, if End was not called.
  ~HeldPause();
  HeldPause(const HeldPause&) = delete;
  HeldPause& operator=(const HeldPause&) = delete;

  // Waits until no worker trains. DEADLINE_EXCEEDED, saying who does; or the coordinator's error, if it has not
  // accepted the pause. Once it has, errors are for it to get over. CANCELLED: interrupted.
  absl::Status AwaitRest(int64_t timeout_ms);
  // PauseTrainingResponse.orders of the pause, once no worker trains and none will for kSureMs, whatever becomes of
  // this process. Waits for a coordinator that has been started again, and for a worker that joins, as AwaitRest does.
  static constexpr int64_t kSureMs = 5'000;
  absl::StatusOr<uint64_t> StillRests(int64_t timeout_ms);
  // Workers go on. An error: the pause had ended before, or the coordinator does not answer, and it ends by itself.
  absl::Status End();

  bool interrupted() const { return interrupts_.interrupted(); }

 private:
  void Run();
  // No worker trains, and none will for `sure_ms`.
  bool RestsLocked(int64_t sure_ms) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<uint64_t> Await(int64_t timeout_ms, int64_t sure_ms);

  const InterruptWatch interrupts_;
  const std::string address_;
  const int timeout_ms_;
  const uint64_t token_;

  mutable Mutex mu_;
  CondVar changed_;
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  bool accepted_ ABSL_GUARDED_BY(mu_) = false;  // The coordinator has answered once.
  bool at_rest_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t orders_ ABSL_GUARDED_BY(mu_) = 0;  // PauseTrainingResponse.orders, at rest.
  int64_t ends_ms_ ABSL_GUARDED_BY(mu_) = 0;  // The pause is sure until then.
  std::vector<std::string> waiting_for_ ABSL_GUARDED_BY(mu_);
  absl::Status error_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone::psctl
