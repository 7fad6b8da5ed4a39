// A push or a pull under way, for callers that wait for it, poll it, or are called back.
//
// Thread-safe. Shared by the caller's handle and the client's callback: it lives as long as either.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "worker/client/types.h"

namespace lodestone::worker {

// The rows of one pull whose caller named some keys more than once: each is read once, and written to every place.
struct RepeatedRows {
  std::vector<Key> keys;      // Distinct.
  std::vector<uint32_t> row;  // For each of the caller's keys, its place in `keys`.
  std::vector<float> values;  // [keys.size(), dim]
  uint32_t dim = 0;
  float* destination = nullptr;  // [row.size(), dim]
};

class Call {
 public:
  Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // What must stay until the call is done: keys, and rows that are to be repeated. Owned by the call's maker before it
  // is sent; addresses of elements stay.
  std::vector<std::unique_ptr<std::vector<Key>>> keys;
  std::vector<std::unique_ptr<RepeatedRows>> repeated;

  // The call has ended. Writes what is repeated, lets waiting callers go on, and runs OnDone's function. REQUIRES:
  // called once, by an owner: callers that go on may give up theirs before this returns.
  void Finish(absl::Status status, ShardVersions versions);

  // Waits until it has ended, at most so long (negative: for ever). nullopt: it has not.
  std::optional<absl::Status> Wait(int64_t timeout_ms);
  // The versions at which values were read; empty if none were. REQUIRES: it has ended.
  std::span<const Version> versions() const;

  // Has `function` run once when the call has ended, at once if it has. FAILED_PRECONDITION: there is one already.
  absl::Status OnDone(std::function<void()> function);
  // No function of OnDone runs any more when this returns. REQUIRES: not called from it.
  void ForgetOnDone();

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mu_);
  ShardVersions versions_;  // Constant once status_ is there.
  std::function<void()> on_done_ ABSL_GUARDED_BY(mu_);
  bool has_on_done_ ABSL_GUARDED_BY(mu_) = false;
  bool running_ ABSL_GUARDED_BY(mu_) = false;  // The function of OnDone.
};

}  // namespace lodestone::worker
