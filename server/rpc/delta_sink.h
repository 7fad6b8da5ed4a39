// The destination of one subscriber's deltas: a unary Subscribe's stream, or a subscription on a stream Exchange.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/support/slice.h"
#include "proto/parameter_server.pb.h"

namespace lodestone::server {

// The stream of one subscriber, as Subscriber uses it.
//
// A Subscriber calls Write, Write, … Finish: never two at a time, no Write before OnWritten was called for the previous
// one, Finish exactly once and never while a write is under way; after it the sink is not touched. Calls come on any
// thread and must not block. The sink answers each Write with Subscriber::OnWritten, which may come from within.
//
// Of a shard's change that is sent in several pieces, only the first has `anchor` set: a reader may drop its earlier
// values whenever it sees the flag.
class DeltaSink {
 public:
  virtual ~DeltaSink() = default;
  // Starts writing a delta: its header, without payload, and the payload.
  virtual void Write(v1::Delta delta, std::vector<grpc::Slice> payload) = 0;
  // Breaks the stream if its reader has not taken what is being written for as long as a slow one needs
  // (unread_write.h). Comes during a write only, with a lock of the Subscriber's: nothing is called back from within.
  virtual void EndIfUnread(int64_t now_ms) = 0;
  // Ends the stream.
  virtual void Finish(absl::Status status) = 0;
};

}  // namespace lodestone::server
