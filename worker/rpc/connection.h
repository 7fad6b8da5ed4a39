// A connection to one ps: the calls of ParameterServer over one stream Exchange, which is opened when it is needed.
//
// Thread-safe. Callbacks run on the thread of the completion queue (or the caller's own, once closed), must be quick,
// and must not wait for another call.
//
// A call that is not answered in time ends the stream, and with it all of its calls: on a connection that does not
// answer nothing is worth waiting for, and a late answer would find nobody. The next call opens another stream.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/timer.h"
#include "common/wire/message.h"
#include "grpcpp/channel.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/support/slice.h"
#include "proto/parameter_server.pb.h"
#include "worker/rpc/call_payload.h"
#include "worker/rpc/shared_memory_calls.h"

namespace lodestone::worker {

// Whether a call ended with this because the ps had forgotten its list of keys: it has done nothing, and is to get the
// call again, with the keys.
bool IsListForgotten(const absl::Status& status);

class Connection {
 public:
  // Somebody else runs the completions of `queue` (ConnectionThread); it and `timer` must outlive this. `ps`: which one
  // is meant (common/wire/ps_name.h); another one that `channel` leads to answers UNAVAILABLE. `message_max_bytes`: a
  // call that needs more is an error, and no message is packed to more. `shared_bytes`: each stream offers the ps so
  // much memory to share (shared_calls.h), until one is refused; 0: none.
  Connection(std::string ps, std::shared_ptr<grpc::Channel> channel, grpc::CompletionQueue* queue, Timer* timer,
             int64_t call_timeout_ms, size_t message_max_bytes, size_t shared_bytes = 0)
      : ps_(std::move(ps)),
        channel_(std::move(channel)),
        queue_(queue),
        timer_(timer),
        call_timeout_ms_(call_timeout_ms),
        message_max_bytes_(message_max_bytes),
        shared_bytes_(shared_bytes) {}
  // Closes.
  ~Connection() { Close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // What came for a call: the answer, whose code is 0, and its payload.
  struct Answer {
    v1::Answer header;
    Payload payload;
  };
  using Done = std::function<void(absl::StatusOr<Answer>)>;

  // Sends `call` (what tells where its numbers are is set here) and calls `done` once, with the ps's error if it
  // answers with one. The stream's own errors: DEADLINE_EXCEEDED, or the code that it ended with, UNAVAILABLE as a
  // rule. INVALID_ARGUMENT if the call does not fit into a message. CANCELLED after Close(). A list of keys that the ps
  // has from an earlier call of the stream is not sent again; the error of one that has forgotten it IsListForgotten.
  void Send(v1::Call* call, const CallNumbers& numbers, Done done);

  // Sends a subscription: `on_delta` is called for each delta, and an error of it ends the stream. Then `done` as
  // above; there is no limit of time.
  using OnDelta = std::function<absl::Status(const v1::Delta&, const Payload&)>;
  void Subscribe(v1::Call* call, OnDelta on_delta, Done done);

  // Ends the calls under way with `status`. Those to come find another stream.
  void Reset(const absl::Status& status);

  // Ends all calls with CANCELLED, those to come at once, and waits until no callback runs.
  void Close();

 private:
  class Stream;
  // What is known of a call that waits for its answer.
  struct Waiting {
    Done done;
    OnDelta on_delta;         // Subscriptions only.
    int64_t deadline_ms = 0;  // 0: none.
    KeyListName list;         // Of its keys; count 0: none.
    bool list_sent = true;    // Otherwise it was referred to.
    SharedCalls::Held shared;
  };

  void Start(v1::Call* call, const CallNumbers& numbers, Waiting waiting);

  // Constant.
  const std::string ps_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::CompletionQueue* const queue_;
  Timer* const timer_;
  const int64_t call_timeout_ms_;
  const size_t message_max_bytes_;
  const size_t shared_bytes_;
  const std::shared_ptr<std::atomic<bool>> shared_refused_ = std::make_shared<std::atomic<bool>>(false);

  Mutex mu_;
  CondVar ended_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);  // The newest; null before the first.
  size_t live_ ABSL_GUARDED_BY(mu_) = 0;                 // Streams that have not ended.
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// A completion queue and its thread, for connections to share.
//
// REQUIRES: nothing uses the queue when this is destroyed.
class ConnectionThread {
 public:
  ConnectionThread();
  ~ConnectionThread();

  grpc::CompletionQueue* queue() { return &queue_; }

 private:
  grpc::CompletionQueue queue_;
  std::thread thread_;
};

}  // namespace lodestone::worker
