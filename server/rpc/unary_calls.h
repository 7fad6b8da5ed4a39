// The unary calls of a service that are under way, so that a ps that ends can answer them itself: gRPC would end them
// with CANCELLED, which no client's policy tries again.
//
// Thread-safe. It must outlive the gRPC server.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "grpcpp/support/server_callback.h"

namespace lodestone::server {

class CallMemory;
class UnaryCalls;

// The reactor of a unary call whose bytes count. Owned by gRPC until OnDone.
class CountedReactor final : public grpc::ServerUnaryReactor {
 public:
  // `memory` may be null.
  CountedReactor(CallMemory* memory, size_t bytes);
  // Those of its answer count, too, until the call has ended. RESOURCE_EXHAUSTED if there is no room for them (as
  // CallMemory::TakeAnswer). REQUIRES: it has not finished.
  absl::Status AddAnswer(size_t bytes);
  void OnDone() override;

 private:
  CallMemory* const memory_;
  size_t bytes_;
};

// A call until it is finished. The first Finish counts; later ones are dropped.
class UnaryCall {
 public:
  UnaryCall(UnaryCalls* calls, grpc::ServerUnaryReactor* reactor) : calls_(calls), reactor_(reactor) {}

  // `fill` writes the response, which must not be touched otherwise.
  template <typename Fill>
  void Finish(const absl::Status& status, const Fill& fill) {
    grpc::ServerUnaryReactor* reactor = nullptr;
    {
      MutexLock lock(&mu_);
      if (reactor_ == nullptr) return;
      fill();
      reactor = reactor_;
      reactor_ = nullptr;
    }
    End(reactor, status);
  }
  void Finish(const absl::Status& status) {
    Finish(status, [] {});
  }
  // Runs `use`, unless the call is finished.
  template <typename Use>
  void With(const Use& use) {
    MutexLock lock(&mu_);
    if (reactor_ != nullptr) use();
  }

 private:
  void End(grpc::ServerUnaryReactor* reactor, const absl::Status& status);

  UnaryCalls* const calls_;
  Mutex mu_;
  grpc::ServerUnaryReactor* reactor_ ABSL_GUARDED_BY(mu_);  // gRPC's; null once the call is finished.
};

class UnaryCalls {
 public:
  // After the server has ended. Waits for calls that are leaving.
  ~UnaryCalls() { MutexLock lock(&mu_); }

  // Begins the call of `reactor`. Null during and after Drain: it is finished with UNAVAILABLE already.
  std::shared_ptr<UnaryCall> Begin(grpc::ServerUnaryReactor* reactor);

  // From now on calls end with UNAVAILABLE: new ones at once, those under way if they have not ended by themselves in
  // `grace_ms`. Returns when all have ended, and, within that time, none has come for a moment: gRPC would cut those
  // that are on their way when it stops.
  void Drain(int64_t grace_ms);

 private:
  friend class UnaryCall;
  void Remove(UnaryCall* call);

  Mutex mu_;
  CondVar changed_;
  absl::flat_hash_map<UnaryCall*, std::weak_ptr<UnaryCall>> calls_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  std::chrono::steady_clock::time_point newest_ ABSL_GUARDED_BY(mu_);  // When the last call began.
};

}  // namespace lodestone::server
