// The flow control of one stream Exchange: decides from the calls under way, the waiting answers and the state of the
// connection whether to read, write or end the stream now.
//
// Reads stop while limits::kExchangeCallsMax calls or limits::kExchangeBytesMax bytes are unanswered, or a caller is
// over its quota. Answers that arrive during a write go together into the next message.
//
// Not thread-safe: guarded by the stream's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/base/limits.h"
#include "common/wire/frame.h"
#include "common/wire/outbox.h"
#include "grpcpp/support/byte_buffer.h"

namespace lodestone::server {

class ExchangeFlow {
 public:
  // The operations of gRPC to start now. Each is under way from then on.
  struct Actions {
    bool read = false;                   // OnReadStarted follows; the stream does not finish before.
    bool write = false;                  // Of the message and tags that Next has set.
    std::optional<absl::Status> finish;  // The stream's status; nothing follows.
  };
  // `hold`: answers that do not fill a message wait, because more are about to follow. Sets `message` and `tags`, the
  // tags of its items, if there is something to write.
  // `may_read`: there is room for a message.
  Actions Next(bool hold, bool may_read, grpc::ByteBuffer* message, std::vector<uint64_t>* tags);
  // Whether to read, if there is room.
  bool WantsRead() const { return !finished_ && !reading_ && !ending() && !full() && suspensions_ == 0; }
  // What counts in the memory for calls: unanswered ones and unwritten answers. Deltas do not: subscribers share them,
  // and they are counted as what broadcasts pin.
  size_t held_bytes() const { return call_bytes_ + answer_bytes(); }
  // Those of answers, also of those that are about to come.
  size_t answer_bytes() const { return expected_bytes_ + unwritten_bytes() - delta_bytes_; }

  // Those of the write under way, and a number of its own; 0: there is none.
  size_t writing_bytes() const { return writing_bytes_; }
  uint64_t packed() const { return packed_; }

  // gRPC has been told of a read. Returns the status to finish with, as Actions.
  std::optional<absl::Status> OnReadStarted();
  // The read under way is over; OnReadClosed: the client sends no more, or is gone.
  void OnRead() { reading_ = false; }
  void OnReadClosed() { read_closed_ = true; }
  // The write under way is over. Not `ok`: nothing reaches the client any more, and what waits is lost; its tags are
  // appended to `lost`.
  void OnWritten(bool ok, std::vector<uint64_t>* lost);

  // Calls were received whose requests occupy `bytes` until they are answered.
  void AddCalls(size_t calls, size_t bytes);
  // A call will be answered by this much; or, negative, is about to be.
  void Expect(int64_t bytes) { expected_bytes_ += bytes; }
  // A call is answered by `frame`.
  void AddAnswer(Frame frame, size_t request_bytes);
  // A call becomes a subscription: it is not answered until it is a call again. Deltas go out meanwhile.
  void BeginSubscription();
  void EndSubscription();
  // False, and the delta is lost, if nothing reaches the client any more.
  bool AddDelta(Frame frame);

  // Suspends and resumes reading, for a caller over its quota. Calls nest.
  void Suspend() { ++suspensions_; }
  void Resume() { --suspensions_; }

  // The stream is to end with `status` once its calls are answered. The first status counts.
  void End(const absl::Status& status);
  // No subscription may begin any more.
  bool ending() const { return read_closed_ || end_.has_value(); }

 private:
  struct Delta {
    uint64_t frame = 0;  // Its number, of all that the stream has had.
    size_t bytes = 0;
  };

  bool full() const;
  size_t unwritten_bytes() const { return writing_bytes_ + outbox_.bytes(); }
  bool idle() const;
  // The status to finish with now, once.
  std::optional<absl::Status> TakeFinish();

  bool reading_ = false;
  size_t starting_reads_ = 0;  // Reads that gRPC may not have been told of yet.
  bool writing_ = false;
  bool read_closed_ = false;
  bool broken_ = false;  // Nothing reaches the client any more.
  bool finished_ = false;
  size_t suspensions_ = 0;
  std::optional<absl::Status> end_;  // The status to end with.
  size_t calls_ = 0;                 // Unanswered, without subscriptions.
  size_t call_bytes_ = 0;            // That their requests occupy.
  size_t expected_bytes_ = 0;        // Of answers to calls under way.
  size_t subscriptions_ = 0;
  size_t writing_bytes_ = 0;  // Of the write under way.
  Outbox outbox_{limits::kPackBytesTarget};
  uint64_t packed_ = 0;       // Frames that have left the outbox.
  std::deque<Delta> deltas_;  // Unwritten, in their order.
  size_t delta_bytes_ = 0;    // Theirs.
};

}  // namespace lodestone::server
