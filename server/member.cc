#include "server/member.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/channel.h"
#include "common/log.h"
#include "common/nonce.h"
#include "common/retry.h"
#include "common/status.h"

namespace lodestone {
namespace {

constexpr int64_t kCallTimeoutMsMin = 1000;
constexpr int64_t kCallTimeoutMsMax = 5000;
constexpr int64_t kLeaveTimeoutMs = 500;
constexpr int64_t kPollMs = 100;        // Between two attempts at the start.
constexpr int64_t kRetryMs = 1000;      // Between two attempts later.
constexpr int64_t kReconnectMs = 2000;  // Between two times that gRPC's own pauses are cut short.
constexpr int64_t kWaitLogMs = 10'000;  // A wait that stays the same is logged this often.

std::string PeerName() {
  char host[256] = "unknown";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, ":", getpid());
}

}  // namespace

Member::Member(Options options, std::shared_ptr<grpc::Channel> channel,
               std::function<void(absl::StatusOr<ShardMap>)> on_route)
    : options_(std::move(options)),
      channel_(std::move(channel)),
      stub_(v1::Coordinator::NewStub(channel_)),
      on_route_(std::move(on_route)),
      token_(options_.token != 0 ? options_.token : DrawNonce()),
      lease_ms_(options_.lease_ms),
      thread_([this] { Run(); }) {}

Member::~Member() { Leave(); }

void Member::Leave() {
  {
    MutexLock lock(&mu_);
    if (leaving_) return;
    leaving_ = true;
    if (call_ != nullptr) call_->TryCancel();
    changed_.NotifyAll();
  }
  thread_.join();
  if (incarnation_ == 0) return;
  const absl::Status status = Heartbeat(true);
  if (!status.ok()) LODESTONE_LOG(INFO, "member", "left without telling the coordinator: {}", status.ToString());
}

bool Member::leaving() const {
  MutexLock lock(&mu_);
  return leaving_;
}

void Member::Run() {
  absl::StatusOr<ShardMap> map = AwaitRoute();
  if (leaving()) return;
  const bool ok = map.ok();
  on_route_(std::move(map));
  if (ok) KeepLease();
}

absl::StatusOr<ShardMap> Member::AwaitRoute() {
  const int64_t start_ms = time_.NowMs();
  for (;;) {
    absl::StatusOr<ShardMap> map = TryRoute();
    if (map.ok()) {
      SetWait("");
      has_route_ = true;
      return map;
    }
    if (!MayPass(map.status())) return map.status();
    if (time_.NowMs() - start_ms >= options_.join_timeout_ms) {
      return absl::DeadlineExceededError(absl::StrCat("gave up after ", options_.join_timeout_ms,
                                                      " ms (coordinator.join_timeout_ms): ", map.status().message()));
    }
    SetWait(std::string(map.status().message()));
    if (!Pause(kPollMs)) return absl::CancelledError("the ps ends");
  }
}

absl::StatusOr<ShardMap> Member::TryRoute() {
  if (incarnation_ == 0) LODESTONE_RETURN_IF_ERROR(Join());
  if (time_.NowMs() >= next_heartbeat_ms_) {
    absl::Status status = Heartbeat(false);
    if (absl::IsFailedPrecondition(status)) status = Join();
    LODESTONE_RETURN_IF_ERROR(status);
  }
  v1::RouteResponse route;
  LODESTONE_RETURN_IF_ERROR(Call(kCallTimeoutMsMax, [&](grpc::ClientContext* context) {
    return stub_->Route(context, v1::RouteRequest(), &route);
  }));
  LODESTONE_ASSIGN_OR_RETURN(ShardMap map, ShardMap::FromProto(route));
  if (map.shards() != options_.shards || options_.index >= map.servers()) {
    return absl::InvalidArgumentError(absl::StrCat("the coordinator's shard map has ", map.shards(), " shards on ",
                                                   map.servers(), " servers; this is ps ", options_.index, " with ",
                                                   options_.shards, " (cluster.shards)"));
  }
  return map;
}

void Member::KeepLease() {
  while (Pause(std::max<int64_t>(1, next_heartbeat_ms_ - time_.NowMs()))) {
    absl::Status status = incarnation_ == 0 ? Join() : Heartbeat(false);
    if (absl::IsFailedPrecondition(status) && incarnation_ != 0) {
      LODESTONE_LOG(WARN, "member", "the lease is lost; joins again: {}", status.ToString());
      incarnation_ = 0;
      status = Join();
    }
    if (leaving()) return;
    if (status.ok()) {
      SetWait("");
      continue;
    }
    SetWait(absl::StrCat("goes on serving without a lease for now: ", status.message()));
    next_heartbeat_ms_ = time_.NowMs() + std::min(kRetryMs, lease_ms_ / 3);
  }
}

absl::Status Member::Join() {
  v1::JoinRequest request;
  request.set_role(v1::ROLE_SERVER);
  request.set_address(options_.address);
  request.set_index_plus_one(options_.index + 1);
  request.set_cluster(options_.cluster);
  request.set_shards(options_.shards);
  request.set_peer(PeerName());
  request.set_token(token_);
  request.set_predecessor(options_.predecessor);
  v1::JoinResponse response;
  LODESTONE_RETURN_IF_ERROR(
      Call(kCallTimeoutMsMax, [&](grpc::ClientContext* context) { return stub_->Join(context, request, &response); }));
  incarnation_ = response.incarnation();
  lease_ms_ = std::max<int64_t>(3, response.lease_ms());
  next_heartbeat_ms_ = time_.NowMs() + lease_ms_ / 3;
  LODESTONE_LOG(INFO, "member", "joined coordinator={} incarnation={} lease_ms={}", options_.coordinator, incarnation_,
                lease_ms_);
  return absl::OkStatus();
}

absl::Status Member::Heartbeat(bool leaving) {
  v1::HeartbeatRequest request;
  request.set_incarnation(incarnation_);
  request.set_leaving(leaving);
  v1::HeartbeatResponse response;
  if (leaving) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(kLeaveTimeoutMs));
    return FromGrpc(stub_->Heartbeat(&context, request, &response));
  }
  const int64_t timeout_ms = std::clamp(lease_ms_ / 3, kCallTimeoutMsMin, kCallTimeoutMsMax);
  LODESTONE_RETURN_IF_ERROR(
      Call(timeout_ms, [&](grpc::ClientContext* context) { return stub_->Heartbeat(context, request, &response); }));
  next_heartbeat_ms_ = time_.NowMs() + lease_ms_ / 3;
  return absl::OkStatus();
}

bool Member::MayPass(const absl::Status& status) {
  if (!absl::IsAlreadyExists(status)) return IsRetryable(status.code()) || absl::IsCancelled(status);
  // The place may still be held by an earlier life of this ps, whose lease then ends.
  if (held_since_ms_ == 0) held_since_ms_ = time_.NowMs();
  return time_.NowMs() - held_since_ms_ < lease_ms_ + lease_ms_ / 2;
}

absl::Status Member::Call(int64_t timeout_ms, const std::function<grpc::Status(grpc::ClientContext*)>& call) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  {
    MutexLock lock(&mu_);
    if (leaving_) return absl::CancelledError("the ps ends");
    call_ = &context;
  }
  const grpc::Status status = call(&context);
  {
    MutexLock lock(&mu_);
    call_ = nullptr;
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnimplementedError(
        absl::StrCat("what listens at ", options_.coordinator, " (coordinator.address) is not the ps with index 0"));
  }
  return Annotate(FromCall(status), absl::StrCat("coordinator ", options_.coordinator));
}

bool Member::Pause(int64_t ms) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
  const int64_t now_ms = time_.NowMs();
  if (options_.index > 0 && now_ms - reconnected_ms_ >= kReconnectMs) {  // Index 0 needs no connection to itself.
    reconnected_ms_ = now_ms;
    Reconnect(channel_.get());
  }
  MutexLock lock(&mu_);
  while (!leaving_ && changed_.WaitUntil(&mu_, until)) {
  }
  return !leaving_;
}

void Member::SetWait(const std::string& what) {
  const int64_t now_ms = time_.NowMs();
  bool is_new = false;
  {
    MutexLock lock(&mu_);
    is_new = wait_ != what;
    if (is_new && (wait_.empty() || what.empty())) wait_since_ms_ = now_ms;
    wait_ = what;
  }
  if (what.empty()) {
    if (is_new && wait_logged_ms_ > 0) LODESTONE_LOG(INFO, "member", "what this ps waited for is there");
    wait_logged_ms_ = 0;
    return;
  }
  if (now_ms - wait_logged_ms_ < (is_new ? kRetryMs : kWaitLogMs)) return;
  wait_logged_ms_ = now_ms;
  if (has_route_) {
    LODESTONE_LOG(WARN, "member", "{}", what);
  } else {
    LODESTONE_LOG(INFO, "member", "{}", what);
  }
}

void Member::FillStatus(v1::StatusResponse* status) const {
  MutexLock lock(&mu_);
  if (wait_.empty()) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who(absl::StrCat("ps ", options_.index));
  wait->set_what(wait_);
  wait->set_seconds(static_cast<double>(time_.NowMs() - wait_since_ms_) / 1000.0);
}

}  // namespace lodestone
