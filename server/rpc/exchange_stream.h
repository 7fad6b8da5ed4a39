// One stream of Exchange. See exchange.h; used by exchange.cc and exchange_rights.cc only.
//
// Thread-safe. Keeps itself alive while gRPC or the store works for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/wire/message.h"
#include "common/wire/outbox.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "proto/parameter_server.pb.h"
#include "server/auth/authorized_caller.h"
#include "server/auth/revocable.h"
#include "server/rpc/exchange.h"
#include "server/rpc/key_list_cache.h"
#include "server/rpc/shared_values.h"
#include "server/store/request_payload.h"

namespace lodestone::server {

class ExchangeStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                             public Revocable,
                             public std::enable_shared_from_this<ExchangeStream> {
 public:
  // `caller`: who may not make every call; null: he may.
  ExchangeStream(Exchange* exchange, grpc::CallbackServerContext* context, std::shared_ptr<Caller> caller)
      : exchange_(exchange),
        context_(context),
        peer_(context->peer()),
        caller_(std::move(caller)),
        key_lists_(exchange->key_list_bytes_),
        shared_values_(peer_) {}

  // Call once. Unless `end` is OK, nothing is read, and the stream ends with it.
  void Start(const absl::Status& end);
  // As Exchange::Drain, with `status`.
  void End(const absl::Status& status);
  void Revoke(const absl::Status& why) override;

  // gRPC's.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class DeltaWriter;
  class Step;
  // What every answer to a call says, whatever became of it.
  struct Outcome {
    uint64_t id = 0;
    v1::Answer::Keys keys = v1::Answer::NO_LIST;
    v1::Answer::SharedMemory shared_memory = v1::Answer::NO_OFFER;
    size_t call_bytes = 0;  // That the call takes here until it is answered; the answer does not say it.
  };
  // A call as it came.
  struct Received {
    v1::Call call;
    RequestPayload numbers;
    SharedValues::Room room;  // For its answer's values.
    absl::Status status;      // Of its list of keys, and of what it has in shared memory.
    Outcome outcome;
  };

  // Parses a message and runs its calls.
  void RunMessage(const grpc::ByteBuffer& message);
  // The calls of a message, their lists of keys and shared values found, in the order of the messages.
  absl::Status ReadCalls(const grpc::ByteBuffer& message, std::vector<Received>* calls);
  // Finds what a call has elsewhere than in the message.
  void FindNumbers(Received* received);
  // Runs one call; each ends in Answer.
  void RunCall(Received received);
  // Whether the caller may make it. If he makes too many, the stream is not read on for a while.
  absl::Status CheckCall(const v1::Call& call, size_t payload_bytes);
  void RunSubscribe(uint64_t id, const v1::SubscribeRequest& request);

  // Sends what this thread has answered of a message so far.
  void Flush();

  // Sends what became of a call.
  void Answer(const Outcome& outcome, v1::Answer answer, std::vector<grpc::Slice> payload);
  void AnswerError(const Outcome& outcome, const absl::Status& status);
  // Sends a delta of the subscription `id`.
  void SendDelta(uint64_t id, v1::Delta delta, std::vector<grpc::Slice> payload);
  void CancelSubscriptions(const absl::Status& status);
  void EndSubscription(uint64_t id, const absl::Status& status);

  // Starts whatever can be started now: a read, the end. True if `outgoing_` is to be written, without the mutex; not
  // if it is small and to be held.
  bool Pump(bool hold) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant.
  Exchange* const exchange_;
  grpc::CallbackServerContext* const context_;  // gRPC's, until OnDone.
  const std::string peer_;
  const std::shared_ptr<Caller> caller_;

  // gRPC's.
  std::shared_ptr<ExchangeStream> self_;  // From Start to OnDone.
  grpc::ByteBuffer incoming_;             // Belongs to the read under way.
  KeyLists key_lists_;                    // Belongs to it, or to the message that it has read.
  SharedValues shared_values_;            // The same.
  grpc::ByteBuffer outgoing_;             // Belongs to the write under way.

  Mutex mu_;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool read_closed_ ABSL_GUARDED_BY(mu_) = false;  // The client sends no more, or is gone.
  bool broken_ ABSL_GUARDED_BY(mu_) = false;       // Nothing reaches the client any more.
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;                // gRPC has done with the stream.
  bool revoked_ ABSL_GUARDED_BY(mu_) = false;             // It was told to end.
  size_t holds_ ABSL_GUARDED_BY(mu_) = 0;                 // Of calls beyond a quota: nothing is read meanwhile.
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // What the stream is to end with.
  size_t messages_ ABSL_GUARDED_BY(mu_) = 0;              // Whose calls are being run, and Flush follows.
  size_t calls_ ABSL_GUARDED_BY(mu_) = 0;                 // Unanswered, without subscriptions.
  size_t call_bytes_ ABSL_GUARDED_BY(mu_) = 0;            // Outcome::call_bytes of those.
  size_t writing_bytes_ ABSL_GUARDED_BY(mu_) = 0;         // Of the write under way.
  Outbox outbox_ ABSL_GUARDED_BY(mu_){limits::kPackBytesTarget};
  std::vector<uint64_t> written_tags_ ABSL_GUARDED_BY(mu_);  // Of the write under way.
  absl::flat_hash_map<uint64_t, std::shared_ptr<DeltaWriter>> subscriptions_ ABSL_GUARDED_BY(mu_);  // By call id.
};

// Holds the stream's mutex, and at its end starts whatever can be started then.
class ABSL_SCOPED_LOCKABLE ExchangeStream::Step {
 public:
  explicit Step(ExchangeStream* stream) ABSL_EXCLUSIVE_LOCK_FUNCTION(stream->mu_) : stream_(stream) {
    stream_->mu_.Lock();
  }
  ~Step() ABSL_UNLOCK_FUNCTION() {
    const bool write = stream_->Pump(hold_);
    stream_->mu_.Unlock();
    // Sends as a rule, which takes its time. Until it is done the stream does not end.
    if (write) stream_->StartWrite(&stream_->outgoing_);
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // Does not write what is small: a message's calls are being run, and Flush follows.
  void Hold() { hold_ = true; }

 private:
  ExchangeStream* const stream_;
  bool hold_ = false;
};

}  // namespace lodestone::server
