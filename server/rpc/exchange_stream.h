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
#include "server/rpc/stream_budget.h"
#include "server/rpc/unread_write.h"

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
  // About once a second while others wait for memory that answers (or `deltas`) keep: ends the stream if it holds such,
  // and its client does not read what is being written (unread_write.h).
  void EndIfUnread(int64_t now_ms, bool deltas);

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

  void RunPull(const AnswerRoute& route, v1::PullRequest request, RequestPayload payload);
  void RunPushPull(const AnswerRoute& route, v1::PushPullRequest request, RequestPayload payload);
  // Calls `run`, as StreamBudget::Run, once there is room for `bytes` of an answer.
  template <typename Run>
  void RunWithRoom(size_t bytes, Run run);
  // A turn has come that the stream had to wait for; `bytes` count.
  void OnTurn(StreamBudget::Turn turn, size_t bytes);

  // Starts the read that the flow has asked for. Without a write to start, the stream may be gone afterwards.
  void Read() ABSL_LOCKS_EXCLUDED(mu_);

  // A callback that sends the store's result; `fill` moves the result into the answer and its values.
  template <typename Fill>
  auto AnswerWith(const AnswerRoute& route, Fill fill, size_t expected_bytes = 0);

  // Sends a call's result and its values, or its error.
  // `expected_bytes`: those that RunWithRoom has found room for.
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
  StreamBudget budget_ ABSL_GUARDED_BY(mu_){services_.memory, &flow_};
  std::vector<uint64_t> written_tags_ ABSL_GUARDED_BY(mu_);  // Of the write under way.
  size_t messages_ ABSL_GUARDED_BY(mu_) = 0;                 // Whose calls are being run.
  bool done_ ABSL_GUARDED_BY(mu_) = false;                   // gRPC does not use the stream any more.
  bool revoked_ ABSL_GUARDED_BY(mu_) = false;
  UnreadWrite unread_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<DeltaWriter>> subscriptions_ ABSL_GUARDED_BY(mu_);  // By call id.
};

}  // namespace lodestone::server
