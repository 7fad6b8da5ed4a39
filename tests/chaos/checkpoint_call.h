// A checkpoint that a ps of a chaos run is asked for, while other things go on.
//
// Thread-safe. The destructor gives the call up.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "grpcpp/client_context.h"

namespace lodestone::chaos {

class CheckpointCall {
 public:
  // Asks what listens at `port` of this machine for one called `name`, or for a periodic one.
  explicit CheckpointCall(int port, std::string name = "");
  ~CheckpointCall();
  CheckpointCall(const CheckpointCall&) = delete;
  CheckpointCall& operator=(const CheckpointCall&) = delete;

  bool done() const;
  // REQUIRES: done().
  absl::Status Result() const;

 private:
  grpc::ClientContext context_;

  mutable Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status result_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone::chaos
