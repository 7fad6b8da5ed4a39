// One stream Exchange: receives calls, runs them on the store and sends their answers.
//
// Thread-safe. Keeps itself alive while gRPC or the store works for it; what Services names must outlive the gRPC
// server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "proto/parameter_server.pb.h"
#include "server/auth/authorized_caller.h"
#include "server/auth/revocable.h"
#include "server/rpc/call_memory.h"
#include "server/rpc/call_reader.h"
#include "server/rpc/exchange_flow.h"

namespace lodestone::server {

class Broadcaster;
class Store;

class ExchangeStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                             public Revocable,
                             public std::enable_shared_from_this<ExchangeStream> {
 public:
  // What a stream uses of its ps.
  struct Services {
    Store* store = nullptr;
    Broadcaster* broadcaster = nullptr;
    Incarnation incarnation = 0;                 // Of this ps.
    CallMemory* memory = nullptr;                // Null: without bounds but the stream's own.
    Timer* timer = nullptr;                      // Null if callers have no quotas.
    std::function<SharedUse()> shared_use;       // As PayloadTransport.
    std::shared_ptr<KeyListPool> key_list_pool;  // As KeyListCache.
  };
  // `caller`: decides about each call; null: every call is allowed.
  ExchangeStream(Services services, grpc::CallbackServerContext* context, std::shared_ptr<Caller> caller);

  // Begins to read. Call once. Unless `end` is OK, nothing is read, and the stream ends with it.
  void Start(const absl::Status& end);
  // Ends the stream with `status` once the calls it has read are answered.
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

  // Reads the calls of a message and runs them.
  void RunMessage(const grpc::ByteBuffer& message);
  // Runs one call; each ends in Answer.
  void RunCall(ReceivedCall received);
  // OK if the caller may make the call. Over its quota, the stream is not read for a while.
  absl::Status CheckCall(const v1::Call& call, size_t request_bytes);
  void RunSubscribe(const AnswerRoute& route, const v1::SubscribeRequest& request);

  // A pull waits until there is room for its answer.
  void RunPull(const AnswerRoute& route, v1::PullRequest request, RequestPayload payload);
  // There is room for `bytes` of answers, which are on their way from now on.
  void Expect(size_t bytes);

  // Starts the read that the flow has asked for. Without a write to start, the stream may be gone afterwards.
  void Read() ABSL_LOCKS_EXCLUDED(mu_);
  // Whether there is room to read on, or the stream holds nothing. If not, the stream waits for its turn.
  bool MayRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The stream has waited for its turn the `turn`-th time, and has it now; `bytes` count.
  void OnTurn(uint64_t turn, size_t bytes);
  // Makes what is counted in the ps's memory what the stream holds, and returns what is to be given back.
  size_t Count() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Sends a call's result and its values, or its error.
  // `expected_bytes`: of those that Expect was told of for this call.
  void Answer(const AnswerRoute& route, v1::Answer answer, std::vector<grpc::Slice> values, size_t expected_bytes = 0);
  void AnswerError(const AnswerRoute& route, const absl::Status& status, size_t expected_bytes = 0);
  // Sends a delta of the subscription `id`.
  void SendDelta(uint64_t id, v1::Delta delta, std::vector<grpc::Slice> payload);
  void CancelSubscriptions(const absl::Status& status);
  void EndSubscription(uint64_t id, const absl::Status& status);

  // Constant.
  const Services services_;
  grpc::CallbackServerContext* const context_;  // gRPC's, until OnDone.
  const std::string peer_;
  const std::shared_ptr<Caller> caller_;

  // Used by one thread at a time, as gRPC orders its operations.
  std::shared_ptr<ExchangeStream> self_;  // From Start to OnDone.
  grpc::ByteBuffer incoming_;             // Belongs to the read under way.
  CallReader reader_;                     // Belongs to it, or to the message that it has read.
  grpc::ByteBuffer outgoing_;             // Belongs to the write under way.

  Mutex mu_;
  ExchangeFlow flow_ ABSL_GUARDED_BY(mu_);
  std::vector<uint64_t> written_tags_ ABSL_GUARDED_BY(mu_);  // Of the write under way.
  size_t messages_ ABSL_GUARDED_BY(mu_) = 0;                 // Whose calls are being run.
  uint64_t counted_bytes_ ABSL_GUARDED_BY(mu_) = 0;          // In Services::memory, with those of the read under way.
  size_t read_bytes_ ABSL_GUARDED_BY(mu_) = 0;               // Of the read under way, for as long as it is.
  size_t message_bytes_ ABSL_GUARDED_BY(mu_) = 0;            // Of the last message: the next may be as long.
  uint64_t turn_ ABSL_GUARDED_BY(mu_) = 0;                   // That the stream waits for, or has had.
  bool waits_ ABSL_GUARDED_BY(mu_) = false;                  // For it.
  bool may_read_ ABSL_GUARDED_BY(mu_) = false;               // It has it, and has not read yet.
  bool done_ ABSL_GUARDED_BY(mu_) = false;                   // gRPC does not use the stream any more.
  bool revoked_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<uint64_t, std::shared_ptr<DeltaWriter>> subscriptions_ ABSL_GUARDED_BY(mu_);  // By call id.
};

}  // namespace lodestone::server
