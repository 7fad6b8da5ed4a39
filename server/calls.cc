#include "server/calls.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace lodestone {
namespace {

// A PushPull under way.
struct PushPullCall {
  v1::PushPullRequest header;
  Payload push_payload;
  Payload pull_payload;
  std::function<void(absl::StatusOr<PushPullValues>)> done;
};

absl::Status Split(const Store& store, Payload payload, PushPullCall* call) {
  if (!call->header.push().payload().empty() || !call->header.pull().payload().empty()) {
    return absl::InvalidArgumentError("the payload fields of push and pull must be empty: PushPull has its own");
  }
  LODESTONE_ASSIGN_OR_RETURN(const size_t push_bytes, store.PushPayloadBytes(call->header.push()));
  if (push_bytes > payload.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the push's parts need ", push_bytes, " bytes of payload, and the message has ", payload.size()));
  }
  call->push_payload = payload.Take(push_bytes);
  call->pull_payload = std::move(payload);
  return absl::OkStatus();
}

}  // namespace

void RunPushPull(Store* store, v1::PushPullRequest header, Payload payload,
                 std::function<void(absl::StatusOr<PushPullValues>)> done) {
  auto call = std::make_shared<PushPullCall>();
  call->header = std::move(header);
  call->done = std::move(done);
  if (absl::Status status = Split(*store, std::move(payload), call.get()); !status.ok()) {
    return call->done(std::move(status));
  }
  const auto pull = [store, call](absl::StatusOr<v1::PushResponse> pushed) {
    if (!pushed.ok()) return call->done(pushed.status());
    store->Pull(std::move(*call->header.mutable_pull()), std::move(call->pull_payload),
                [call, pushed = *std::move(pushed)](absl::StatusOr<Store::Values> values) {
                  if (!values.ok()) return call->done(values.status());
                  PushPullValues result;
                  *result.header.mutable_push() = pushed;
                  *result.header.mutable_pull() = std::move(values->header);
                  result.payload = std::move(values->payload);
                  call->done(std::move(result));
                });
  };
  store->Push(std::move(*call->header.mutable_push()), std::move(call->push_payload), pull);
}

absl::StatusOr<v1::EnsureTablesResponse> RunEnsureTables(Store* store, Incarnation server,
                                                         const v1::EnsureTablesRequest& request) {
  LODESTONE_ASSIGN_OR_RETURN(v1::EnsureTablesResponse response, store->EnsureTables(request));
  response.set_server_incarnation(server);
  return response;
}

}  // namespace lodestone
