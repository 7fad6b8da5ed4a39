// Stands between clients and a ps, for tests: passes unary calls on, and repeats some, and loses the answers of others.
//
// Thread-safe.
//
// The destructor waits for the calls that were passed on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "grpcpp/channel.h"
#include "tests/worker/rpc/fake_server.h"

namespace lodestone {

class FaultyProxy {
 public:
  enum class Fault {
    kNone,
    kRefuse,     // Not passed on; UNAVAILABLE.
    kRepeat,     // Passed on twice at once; the first answer counts.
    kDropReply,  // Passed on; when the answer has come, UNAVAILABLE.
  };
  // Decides what is done to the `push`-th call of Push, from 1. Called under a lock. Other calls are only passed on.
  using Faults = std::function<Fault(uint64_t push)>;
  FaultyProxy(std::string target, Faults faults);
  ~FaultyProxy();

  // Waits until no call is passed on.
  void AwaitIdle();

  // Where clients reach it.
  std::string address() const { return server_->address(); }

 private:
  struct Forward;

  void Handle(std::shared_ptr<worker::FakeCall> call);
  // Passes `call` on; gives it the answer if `answer`, else UNAVAILABLE.
  void PassOn(std::shared_ptr<worker::FakeCall> call, bool answer);

  const std::shared_ptr<grpc::Channel> channel_;
  const Faults faults_;

  Mutex mu_;
  CondVar idle_;
  uint64_t pushes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t under_way_ ABSL_GUARDED_BY(mu_) = 0;

  std::unique_ptr<worker::FakeServer> server_;  // Last: its calls use all of the above.
};

}  // namespace lodestone
