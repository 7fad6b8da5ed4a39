// One stream of a Connection. See connection.h; used by connection.cc only.
//
// Thread-safe. Keeps itself alive while gRPC works for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/timer.h"
#include "common/rpc/completion.h"
#include "common/wire/message.h"
#include "common/wire/outbox.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/parameter_server.pb.h"
#include "worker/rpc/call_payload.h"
#include "worker/rpc/connection.h"
#include "worker/rpc/frame_codec.h"

namespace lodestone::worker {

// The state of a call that waits for its answer.
struct Connection::Waiting {
  Done done;
  OnDelta on_delta;          // Subscriptions only, which may take for ever.
  int64_t queued_ms = 0;     // When it came.
  int64_t overtaken_ms = 0;  // When a younger call was answered and this was the oldest; 0: none was.
  FrameCodec::Encoding encoding;
};

class Connection::Stream final : public std::enable_shared_from_this<Stream> {
 public:
  explicit Stream(Connection* owner);

  void Open();

  // Queues a call; false, and nothing is taken, if the stream has ended or is about to. `may_share`: whether the
  // message has room for the fields of shared memory.
  bool Send(v1::Call* call, const CallPayload& payload, bool may_share, Waiting* waiting);

  // Ends the stream, its calls with `status`.
  void Cancel(const absl::Status& status);
  // Ends the stream if a call is late.
  void CheckTime();

 private:
  using Event = StreamCompletion<Stream>;
  using Waitings = std::map<uint64_t, Waiting>;

  void OnStarted(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);

  absl::Status RunAnswers(const grpc::ByteBuffer& message);
  // `more`: others of the same message follow.
  absl::Status RunAnswer(v1::Answer answer, Payload payload, bool more);
  // Writes the next message, unless one is being written. Writing takes time, and is done without the mutex.
  void Pump() ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the next message. It takes time, too.
  void Read() ABSL_LOCKS_EXCLUDED(mu_);
  // Reads if a read is due.
  void ReadIfDue() ABSL_LOCKS_EXCLUDED(mu_);
  // Reads, or leaves it to the next write if no call waits for an answer.
  void ReadOrPostpone() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether calls wait, to be packed together with those that may follow from the answers of a message. No more than
  // half of the unanswered calls wait: with all of them in one message, either end would idle while the other works.
  bool Gathers() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Has CheckTime called when a call may be late, unless it will be anyway.
  void WatchDeadline() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The call that came first, of those that wait for one answer; the end of waiting_: none does.
  Waitings::iterator Oldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // When a call will be late if nothing moves; nullopt: none waits.
  std::optional<int64_t> DeadlineMs() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Connection* const owner_;  // Lives until OnFinished.
  Timer* const timer_;
  const TimeSource* const time_;
  const int64_t call_timeout_ms_;
  FrameCodec codec_;                  // Synchronises itself.
  std::atomic<uint64_t> last_id_{0};  // Of a call that was begun.

  // gRPC's.
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  Event started_{&Stream::OnStarted};
  Event read_{&Stream::OnRead};
  Event written_{&Stream::OnWritten};
  Event finished_{&Stream::OnFinished};
  grpc::ByteBuffer incoming_;  // Belongs to the read under way.
  grpc::Status status_;        // What the stream ended with.

  Mutex mu_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;  // Writes may start.
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool starting_write_ ABSL_GUARDED_BY(mu_) = false;        // A thread is within stream_->Write.
  bool more_answers_ ABSL_GUARDED_BY(mu_) = false;          // Follow the one that is being run.
  bool read_due_ ABSL_GUARDED_BY(mu_) = false;              // No read is under way: the next write starts one.
  bool ending_ ABSL_GUARDED_BY(mu_) = false;                // Takes no more calls.
  std::optional<absl::Status> fault_ ABSL_GUARDED_BY(mu_);  // Why we ended it.
  Outbox outbox_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> written_tags_ ABSL_GUARDED_BY(mu_);
  Waitings waiting_ ABSL_GUARDED_BY(mu_);              // By id: in the order in which they were begun.
  int64_t moved_ms_ ABSL_GUARDED_BY(mu_) = 0;          // When a message was taken or came, or a call ended idleness.
  size_t subscriptions_ ABSL_GUARDED_BY(mu_) = 0;      // Of those.
  Timer::Id deadline_timer_ ABSL_GUARDED_BY(mu_) = 0;  // Runs while calls wait.
  Timer::Id read_timer_ ABSL_GUARDED_BY(mu_) = 0;      // Starts a read that is due.
};

}  // namespace lodestone::worker
