// A connection to one ps: the calls of ParameterServer over one stream Exchange, which is opened on the first call.
//
// Thread-safe. Callbacks run on the thread of the completion queue (or the calling thread, once closed), must be quick,
// and must not wait for another call.
//
// A connection on which calls wait and nothing moves for the call's time-out (no message is taken by the network, no
// answer comes) is not worth waiting for: the stream ends with all of its calls, and the next call opens another one.
// So does one that leaves a call unanswered for three times as long while others are answered. What waits behind other
// messages on a slow link is not late.
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
#include "common/base/time_source.h"
#include "common/base/timer.h"
#include "common/wire/message.h"
#include "grpcpp/channel.h"
#include "grpcpp/completion_queue.h"
#include "proto/parameter_server.pb.h"
#include "worker/rpc/call_payload.h"

namespace lodestone::worker {

class Connection {
 public:
  // A ConnectionThread runs the completions of `queue`; it and `timer` must outlive this. `ps`: the name of the server
  // (common/wire/ps_name.h); another one at the end of `channel` answers UNAVAILABLE. `message_max_bytes`: the limit of
  // a call and of a packed message. `shared_bytes`: the memory that each stream offers to share (frame_codec.h), until
  // one offer is refused; 0: none. `time` (null: SteadyTime's) must outlive this.
  Connection(std::string ps, std::shared_ptr<grpc::Channel> channel, grpc::CompletionQueue* queue, Timer* timer,
             int64_t call_timeout_ms, size_t message_max_bytes, size_t shared_bytes = 0,
             const TimeSource* time = nullptr)
      : ps_(std::move(ps)),
        channel_(std::move(channel)),
        queue_(queue),
        timer_(timer),
        call_timeout_ms_(call_timeout_ms),
        message_max_bytes_(message_max_bytes),
        shared_bytes_(shared_bytes),
        time_(time != nullptr ? time : &steady_) {}
  // Closes.
  ~Connection() { Close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // A successful answer: its header, whose code is 0, and its payload.
  struct Answer {
    v1::Answer header;
    Payload payload;
  };
  using Done = std::function<void(absl::StatusOr<Answer>)>;

  // Sends `call`, whose fields about its payload are set here, and calls `done` once, with the answer or the ps's
  // error. Other errors: DEADLINE_EXCEEDED; the code with which the stream ended, mostly UNAVAILABLE; INVALID_ARGUMENT
  // if the call does not fit into a message; CANCELLED after Close(). A list of keys that the ps has from an earlier
  // call of the stream is not sent again; if the ps has forgotten it, the error IsListForgotten.
  void Send(v1::Call* call, const CallPayload& payload, Done done);

  // Sends a subscription: `on_delta` is called for each delta, and its error ends the stream. Then `done` as above.
  // There is no time limit.
  using OnDelta = std::function<absl::Status(const v1::Delta&, const Payload&)>;
  void Subscribe(v1::Call* call, OnDelta on_delta, Done done);

  // Looks whether calls are late. Happens by itself; for tests that move the time by hand.
  void CheckTime();

  // Ends the calls in flight with `status`. Later ones open another stream.
  void Reset(const absl::Status& status);

  // Ends all calls, later ones too, with CANCELLED, and waits until no callback runs.
  void Close();

 private:
  class Stream;
  struct Waiting;

  void Start(v1::Call* call, const CallPayload& payload, Waiting waiting);
  std::shared_ptr<Stream> newest() {
    MutexLock lock(&mu_);
    return stream_;
  }

  // Constant.
  const std::string ps_;
  const std::shared_ptr<grpc::Channel> channel_;
  grpc::CompletionQueue* const queue_;
  Timer* const timer_;
  const int64_t call_timeout_ms_;
  const size_t message_max_bytes_;
  const size_t shared_bytes_;
  const SteadyTime steady_;
  const TimeSource* const time_;
  const std::shared_ptr<std::atomic<bool>> shared_refused_ = std::make_shared<std::atomic<bool>>(false);

  Mutex mu_;
  CondVar ended_;
  std::shared_ptr<Stream> stream_ ABSL_GUARDED_BY(mu_);  // The newest; null before the first.
  size_t live_ ABSL_GUARDED_BY(mu_) = 0;                 // Streams that have not ended.
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

// A completion queue and its thread, shared by connections.
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
