// A call of Replication.Follow, at the follower's end: over gRPC, or in a simulation.
//
// Thread-safe as gRPC's synchronous streams are: one thread reads, one at a time writes, TryCancel comes from any.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/byte_buffer.h"

namespace lodestone::server {

class FollowCall {
 public:
  virtual ~FollowCall() = default;

  // False: the call has ended, or is about to.
  virtual bool Write(const grpc::ByteBuffer& message) = 0;
  // Waits for the next message; false: none comes any more.
  virtual bool Read(grpc::ByteBuffer* message) = 0;
  // Ends the call soon.
  virtual void TryCancel() = 0;
  // What it has ended with. REQUIRES: called once, at the end, when Read has returned false or after TryCancel.
  virtual absl::Status Finish() = 0;
};

// A place that is called. Not thread-safe.
class FollowPlace {
 public:
  virtual ~FollowPlace() = default;
  virtual std::unique_ptr<FollowCall> Call() = 0;
  // After a call that has ended: the next one need not wait for gRPC's own pauses.
  virtual void Reconnect() = 0;
};

// Makes the place at an address, host:port.
using OpenFollowCall = std::function<std::unique_ptr<FollowPlace>(const std::string& address)>;

}  // namespace lodestone::server
