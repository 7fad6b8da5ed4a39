#include "server/coordinator_client.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace lodestone::server {
namespace {

constexpr int64_t kPromptMs = 1000;        // Between two heartbeats, if failovers are to be heard of soon.
constexpr int64_t kHeartbeatMsMax = 3000;  // Otherwise: what a ps waits for is told by them.
constexpr int64_t kReconnectMs = 2000;     // Between two times that gRPC's own pauses are cut short.
constexpr int64_t kLeaveTimeoutMs = 500;
constexpr int64_t kPollMs = 100;  // Between two attempts at the start, and two requests of the map.
// An answer that tells of so many workers that ended may not have told of all. Less than kEndedWorkersTold
// (member_table.cc).
constexpr int kManyEnds = 256;

}  // namespace

CoordinatorClient::CoordinatorClient(Options options, std::unique_ptr<CoordinatorChannel> coordinator,
                                     std::function<void(absl::StatusOr<ShardMap>)> on_route)
    : options_(std::move(options)),
      lease_{LeaseOptions(coordinator->is_fixed()),
             {.fill_heartbeat = [this](bool, v1::HeartbeatRequest* request) { FillHeartbeat(request); },
              .fill_join =
                  [this](v1::JoinRequest* request) {
                    if (options_.shared && options_.shared()) request->mutable_data()->set_shared(true);
                  },
              .on_joined = options_.on_joined,
              .on_heartbeat_answered = [this](const v1::HeartbeatResponse& response) { OnHeartbeatAnswered(response); },
              .check_route = [this](const ShardMap& map) { return CheckRoute(map); },
              .on_first_route = std::move(on_route),
              .on_route =
                  [this](const ShardMap& map) {
                    if (options_.on_change) options_.on_change(map);
                  },
              .on_lost = nullptr},
             std::move(coordinator)} {}

LeaseClient::Options CoordinatorClient::LeaseOptions(bool coordinator_is_fixed) const {
  LeaseClient::Options options;
  options.join.set_role(v1::ROLE_SERVER);
  options.join.set_address(options_.address);
  options.join.set_local_socket(options_.local_socket);
  options.join.set_zone(options_.zone);
  options.join.set_index_plus_one(options_.index + 1);
  options.join.set_cluster(options_.cluster);
  options.join.set_shards(options_.shards);
  options.join.set_servers(options_.servers);
  options.join.set_token(options_.token);
  options.join.set_predecessor(options_.predecessor);
  if (options_.data.has_value()) {
    *options.join.mutable_data() = *options_.data;
    options.join.mutable_data()->set_knows_learners(true);
  }
  options.lease_ms = options_.lease_ms;
  options.join_timeout_ms = options_.join_timeout_ms;
  options.leave_timeout_ms = kLeaveTimeoutMs;
  options.poll_ms_max = kPollMs;
  options.route_request_ms_max = kPollMs;
  options.heartbeat_ms_max = options_.replicas > 1 ? kPromptMs : kHeartbeatMsMax;
  // Where the coordinator is fixed, index 0 needs no connection to it.
  options.reconnect_ms = options_.index == 0 && coordinator_is_fixed ? 0 : kReconnectMs;
  options.without_lease = options_.replicas > 1 ? "waits for its lease to be renewed, and serves until it ends"
                                                : "goes on serving without a lease for now";
  return options;
}

absl::Status CoordinatorClient::CheckRoute(const ShardMap& map) const {
  if (map.shards() == options_.shards && options_.index < map.servers()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the coordinator's shard map has ", map.shards(), " shards on ",
                                                 map.servers(), " servers; this is ps ", options_.index, " with ",
                                                 options_.shards, " (cluster.shards)"));
}

void CoordinatorClient::FillHeartbeat(v1::HeartbeatRequest* request) {
  if (options_.progress) *request->mutable_server() = options_.progress();
  if (options_.generation) request->set_generation(options_.generation());
  if (wants_copies_ && options_.copies) {
    for (v1::ShardCopy& copy : options_.copies()) *request->add_copies() = std::move(copy);
  }
  request->set_workers_ended_from(workers_ended_to_);
  filled_event_ = reported_event_;
  if (options_.events == nullptr) return;
  for (v1::Event& event : options_.events->After(reported_event_, limits::kHeartbeatEventsMax)) {
    filled_event_ = event.id();
    event.clear_id();
    *request->add_events() = std::move(event);
  }
}

void CoordinatorClient::OnHeartbeatAnswered(const v1::HeartbeatResponse& response) {
  reported_event_ = filled_event_;
  wants_copies_ = response.wants_copies();
  if (options_.on_heartbeat) options_.on_heartbeat(response);
  workers_ended_to_ = response.workers_ended_to();
  const auto tell = [](const auto& incarnations, const std::function<void(std::span<const Incarnation>)>& who) {
    if (!incarnations.empty() && who) who({incarnations.data(), static_cast<size_t>(incarnations.size())});
  };
  tell(response.ranges_open(), options_.on_ranges_open);
  tell(response.workers_ended(), options_.on_workers_ended);
  // Ranges are sessions too: with short ones more end than heartbeats of the usual pace could tell.
  if (response.workers_ended_size() >= kManyEnds) lease_.RequestHeartbeat();
}

absl::StatusOr<v1::ReportSyncResponse> CoordinatorClient::ReportSync(const v1::ReportSyncRequest& request) {
  MutexLock in_turn(&report_mu_);
  v1::ReportSyncRequest numbered = request;
  numbered.set_incarnation(incarnation());
  numbered.set_sequence(++reports_);
  if (numbered.incarnation() == 0) return absl::UnavailableError("this ps has not joined the coordinator at present");
  v1::ReportSyncResponse response;
  const absl::Status status =
      lease_.Call(lease_.call_timeout_ms(), [&](v1::Coordinator::Stub* stub, grpc::ClientContext* context) {
        return stub->ReportSync(context, numbered, &response);
      });
  if (absl::IsFailedPrecondition(status)) lease_.RequestHeartbeat();
  LODESTONE_RETURN_IF_ERROR(status);
  if (response.accepted_size() != request.reports_size()) {
    return absl::InternalError(absl::StrCat("the coordinator answers ", request.reports_size(), " reports with ",
                                            response.accepted_size(), " answers"));
  }
  if (response.route_epoch() > lease_.epoch()) lease_.RequestRoute();
  return response;
}

void CoordinatorClient::FillStatus(v1::StatusResponse* status) const {
  status->set_coordinator(lease_.coordinator_address());
  const std::optional<LeaseClient::Wait> waits = lease_.wait();
  if (!waits.has_value()) return;
  v1::WaitStatus* const wait = status->add_waits();
  wait->set_who(absl::StrCat("ps ", options_.index));
  wait->set_what(waits->what);
  wait->add_targets()->set_kind(v1::WaitTarget::COORDINATOR);
  wait->set_seconds(waits->seconds);
}

}  // namespace lodestone::server
