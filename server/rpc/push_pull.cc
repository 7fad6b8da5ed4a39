#include "server/rpc/push_pull.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/store/store.h"

namespace lodestone::server {

struct PushPullCall {
  v1::PushPullRequest header;
  RequestPayload push_numbers;
  RequestPayload pull_numbers;
  std::shared_ptr<PullPath::Call> pull;
  v1::PushResponse pushed;
};

namespace {

absl::Status Split(const PushPath& pushes, RequestPayload numbers, PushPullCall* call) {
  if (!call->header.push().payload().empty() || !call->header.pull().payload().empty()) {
    return absl::InvalidArgumentError("the payload fields of push and pull must be empty; use the payload of PushPull");
  }
  size_t key_bytes = 0;
  LODESTONE_ASSIGN_OR_RETURN(size_t push_bytes, pushes.PayloadBytes(call->header.push(), &key_bytes));
  if (numbers.keys.has_value()) {
    push_bytes -= key_bytes;
    if (key_bytes > numbers.keys->size()) {
      return absl::InvalidArgumentError(absl::StrCat("the parts of the push have ", key_bytes / sizeof(Key),
                                                     " rows, but the list of keys has ",
                                                     numbers.keys->size() / sizeof(Key)));
    }
    call->push_numbers.keys = numbers.keys->Take(key_bytes);
    call->pull_numbers.keys = *std::move(numbers.keys);
  }
  if (push_bytes > numbers.payload.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the parts of the push need ", push_bytes,
                                                   " bytes of payload, but the message has ", numbers.payload.size()));
  }
  call->push_numbers.payload = numbers.payload.Take(push_bytes);
  call->pull_numbers.payload = std::move(numbers.payload);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<PushPullCall>> CheckPushPull(Store* store, v1::PushPullRequest header,
                                                            RequestPayload numbers) {
  auto call = std::make_shared<PushPullCall>();
  call->header = std::move(header);
  LODESTONE_RETURN_IF_ERROR(Split(store->pushes(), std::move(numbers), call.get()));
  LODESTONE_ASSIGN_OR_RETURN(
      call->pull, store->pulls().Check(std::move(*call->header.mutable_pull()), std::move(call->pull_numbers)));
  return call;
}

size_t PushPullAnswerBytes(const PushPullCall& call) { return PullPath::AnswerBytes(*call.pull); }

void RunPushOf(Store* store, const std::shared_ptr<PushPullCall>& call, std::function<void(const absl::Status&)> done) {
  store->pushes().Push(std::move(*call->header.mutable_push()), std::move(call->push_numbers),
                       [call, done = std::move(done)](absl::StatusOr<v1::PushResponse> pushed) {
                         if (pushed.ok()) call->pushed = *std::move(pushed);
                         done(pushed.status());
                       });
}

void RunPullOf(Store* store, const std::shared_ptr<PushPullCall>& call,
               std::function<void(absl::StatusOr<PushPullValues>)> done) {
  const auto pull = std::move(call->pull);  // It keeps the callback, which keeps `call`.
  store->pulls().Read(pull, [call, done = std::move(done)](absl::StatusOr<PullPath::Values> values) {
    if (!values.ok()) return done(values.status());
    PushPullValues result;
    *result.header.mutable_push() = std::move(call->pushed);
    *result.header.mutable_pull() = std::move(values->header);
    result.payload = std::move(values->payload);
    done(std::move(result));
  });
}

void RunPushPull(Store* store, const std::shared_ptr<PushPullCall>& call,
                 std::function<void(absl::StatusOr<PushPullValues>)> done) {
  RunPushOf(store, call, [store, call, done = std::move(done)](const absl::Status& pushed) {
    if (!pushed.ok()) return done(pushed);
    RunPullOf(store, call, done);
  });
}

void RunEnsureTables(Store* store, Incarnation server, v1::EnsureTablesRequest request,
                     std::function<void(absl::StatusOr<v1::EnsureTablesResponse>)> done) {
  store->EnsureTables(std::move(request), [server, done = std::move(done)](auto response) {
    if (response.ok()) response->set_server_incarnation(server);
    done(std::move(response));
  });
}

}  // namespace lodestone::server
