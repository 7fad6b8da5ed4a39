#include "server/coordinator/membership.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "server/coordinator/cluster_status.h"
#include "server/coordinator/saved_state.h"

namespace lodestone::server {
namespace {

// Of a validation: a result without versions and metrics; and its metrics, up to six for each of several labels, or
// some of one, each named after the label's column.
constexpr size_t kValidationBytesMax = 512;
constexpr int kValidationMetricsMax = 6 * static_cast<int>(limits::kLabelsMax) + 16;
constexpr size_t kValidationMetricBytesMax = 320;

// INVALID_ARGUMENT if what a worker reports of validations is more than is to be kept.
absl::Status CheckValidation(const v1::ValidateRequest& request, uint32_t shards) {
  v1::Validation result = request.result();
  result.clear_versions();
  const bool metrics_fit =
      result.metrics_size() <= kValidationMetricsMax &&
      std::all_of(result.metrics().begin(), result.metrics().end(), [](const v1::ValidationMetric& metric) {
        return metric.ByteSizeLong() <= kValidationMetricBytesMax;
      });
  result.clear_metrics();
  if (!metrics_fit || result.ByteSizeLong() > kValidationBytesMax ||
      request.result().versions_size() > static_cast<int64_t>(shards) ||
      request.kept().checkpoint().size() > limits::kCheckpointNameBytesMax) {
    return absl::InvalidArgumentError("a validation's report is too long");
  }
  return absl::OkStatus();
}

}  // namespace

Membership::Membership(Options options)
    : options_(std::move(options)),
      events_(options_.time),
      members_(&options_, &events_),
      shards_(&options_, &members_, &events_),
      moves_(&options_, &members_, &shards_),
      rebalancer_(&options_, &members_, &shards_, &events_) {}

absl::StatusOr<v1::JoinResponse> Membership::Join(const v1::JoinRequest& request) {
  LODESTONE_ASSIGN_OR_RETURN(const MemberTable::Choice choice, members_.Choose(request));
  MemberPlace* const place = choice.place;
  if (choice.is_retry) {
    HeardOf(place);
    return AnswerTo(*place);
  }
  const bool is_server = place->role == v1::ROLE_SERVER;
  if (is_server) LODESTONE_RETURN_IF_ERROR(CheckKnown(*place, request.data()));
  if (!is_server) BeginRunIfOver(request.launch());
  if (members_.EndLife(*place) && is_server) shards_.TakeOut(*place);
  ShardAssignment::Start start;
  start.former = place->data;
  start.continues = MemberTable::Continues(*place, request);
  if (is_server && place->incarnation == 0) moves_.TakePlace(place->index, request.data().served());
  start.new_process = !members_.Occupy(place, request);
  if (is_server) {
    shards_.ServerJoined(*place, start);
    moves_.Advance();
  }
  return AnswerTo(*place);
}

v1::JoinResponse Membership::AnswerTo(const MemberPlace& place) const {
  v1::JoinResponse response;
  response.set_index(place.index);
  response.set_incarnation(place.incarnation);
  response.set_lease_ms(members_.LeaseMsOf(place));
  if (place.role == v1::ROLE_SERVER) response.set_orders(pause_.orders());
  return response;
}

void Membership::BeginRunIfOver(const std::string& launch) {
  const bool belongs = !launch.empty() && launch == launch_;
  launch_ = launch;
  bool all_left = true;
  for (const MemberPlace& worker : members_.workers()) {
    if (members_.Alive(worker)) return;
    all_left = all_left && (worker.incarnation == 0 || worker.left);
  }
  if (belongs && ranges_.state().over()) return;
  ranges_.BeginRunIfOver();
  if (all_left || !validations_.stopped().empty()) validations_.Reset();
}

void Membership::HeardOf(MemberPlace* place) {
  const bool was_silent = members_.HeardOf(place);
  if (was_silent && place->role == v1::ROLE_SERVER) shards_.PromoteUndecided(*place);
}

absl::StatusOr<v1::HeartbeatResponse> Membership::Heartbeat(const v1::HeartbeatRequest& request) {
  LODESTONE_RETURN_IF_ERROR(members_.CheckAlive(request.incarnation()));
  MemberPlace* const place = members_.Find(request.incarnation());
  HeardOf(place);
  members_.Record(place, request);
  if (place->left && place->role == v1::ROLE_SERVER) {
    shards_.TakeOut(*place);
    shards_.AssignFollowers();
  }
  if (place->role == v1::ROLE_SERVER) {
    moves_.Advance();
    moves_.Plan(rebalancer_.Judge(moves_.plan()));
  }
  v1::HeartbeatResponse response;
  response.set_route_epoch(shards_.epoch());
  response.set_lease_ms(members_.LeaseMsOf(*place));
  if (place->role == v1::ROLE_SERVER) response.set_shards_to_sync(shards_.ToSync());
  response.set_all_in_sync(place->role == v1::ROLE_SERVER && shards_.IsComplete());
  response.set_wants_copies(place->role == v1::ROLE_SERVER && shards_.unserved() > 0);
  if (place->role == v1::ROLE_SERVER) {
    members_.FillEnded(request.workers_ended_from(), &response);
    for (const v1::RangeLease& range : ranges_.state().open()) response.add_ranges_open(range.incarnation());
    // A server may get the shards that a worker pushes to only after hours.
    for (const MemberPlace& worker : members_.workers()) {
      if (members_.Alive(worker)) response.add_ranges_open(worker.incarnation);
    }
  }
  if (place->role == v1::ROLE_WORKER) response.set_stop_training(validations_.stopped());
  if (place->role == v1::ROLE_WORKER) response.set_pause_announced(pause_.announced());
  return response;
}

absl::StatusOr<MemberPlace*> Membership::LivingWorker(Incarnation incarnation, const char* does) {
  LODESTONE_RETURN_IF_ERROR(members_.CheckAlive(incarnation));
  MemberPlace* const worker = members_.Find(incarnation);
  if (worker->role != v1::ROLE_WORKER) {
    return absl::InvalidArgumentError(absl::StrCat(members_.Describe(*worker), " trains nothing, and ", does));
  }
  HeardOf(worker);
  return worker;
}

absl::StatusOr<v1::LeaseRangesResponse> Membership::LeaseRanges(const v1::LeaseRangesRequest& request) {
  LODESTONE_RETURN_IF_ERROR(LivingWorker(request.incarnation(), "leases ranges").status());
  return ranges_.Lease(request, !validations_.stopped().empty());
}

void Membership::NoteClock(Incarnation worker, Clock clock) {
  const absl::StatusOr<MemberPlace*> place = LivingWorker(worker, "has a clock");
  if (!place.ok()) return;
  v1::WorkerProgress& progress = (*place)->progress;
  progress.set_clock(std::max(progress.clock(), clock));
  if (progress.phase() < v1::PHASE_TRAINING) progress.set_phase(v1::PHASE_TRAINING);
}

absl::StatusOr<v1::ValidateResponse> Membership::Validate(const v1::ValidateRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckValidation(request, options_.shards));
  LODESTONE_ASSIGN_OR_RETURN(MemberPlace* const worker, LivingWorker(request.incarnation(), "validates"));
  v1::ValidateResponse response;
  switch (request.what_case()) {
    case v1::ValidateRequest::kClaim:
      response.set_claimed(validations_.Claim(request.claim()));
      for (const MemberPlace& of : members_.workers()) {
        response.set_cluster_samples(response.cluster_samples() + of.progress.samples());
      }
      break;
    case v1::ValidateRequest::kResult:
      if (request.result().number() == 0 || request.result().number() > validations_.state().claimed()) {
        return absl::InvalidArgumentError(absl::StrCat(members_.Describe(*worker), " reports validation ",
                                                       request.result().number(), ", and ",
                                                       validations_.state().claimed(), " was the last to be claimed"));
      }
      response.set_best(validations_.Report(request.result(), request.patience()));
      break;
    case v1::ValidateRequest::kKept:
      validations_.NoteKept(request.kept());
      break;
    default:
      break;
  }
  *response.mutable_state() = validations_.state();
  return response;
}

absl::Status Membership::CheckKnown(const MemberPlace& place, const v1::ServerData& data) {
  const bool may_hold_more = place.incarnation == 0 && data.served() && data.folder() != 0;
  if (!may_hold_more || !shards_.mapped() || !shards_.dealt_anew() || shards_.lost().any()) {
    refused_.erase(place.index);
    return absl::OkStatus();
  }
  if (refused_.insert(place.index).second) events_.Note("refused", place, "it has served shards that others have now");
  return absl::FailedPreconditionError(absl::StrCat(
      "ps ", place.index,
      " has served shards before, and the coordinator does not know it: its state was lost, or the "
      "folder is of another cluster. Other ps serve these shards now. The folder stays as it is. See \"More ps\" in "
      "server/README.md; to join without what it holds, start this ps with an empty server.data_dir"));
}

absl::StatusOr<v1::RouteResponse> Membership::Route(const v1::RouteRequest& request) {
  absl::StatusOr<v1::RouteResponse> route = shards_.Route();
  // What clients hear of it has no owner acknowledge anything. One that does not say what it is may be an owner.
  if (!route.ok() || request.role() == v1::ROLE_WORKER) return route;
  const MemberPlace* const place = members_.Find(request.incarnation());
  shards_.NoteTold(place != nullptr && place->role == v1::ROLE_SERVER ? place : nullptr);
  return route;
}

absl::StatusOr<v1::PromoteResponse> Membership::Promote(const v1::PromoteRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckDecidable(request.server()));
  v1::PromoteResponse response;
  LODESTONE_ASSIGN_OR_RETURN(const uint32_t shards, shards_.PromoteCopies(members_.servers()[request.server()]));
  response.set_shards(shards);
  response.set_unserved(shards_.unserved());
  return response;
}

absl::StatusOr<v1::AcceptLossResponse> Membership::AcceptLoss(const v1::AcceptLossRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckDecidable(request.server()));
  v1::AcceptLossResponse response;
  LODESTONE_ASSIGN_OR_RETURN(const uint32_t shards, shards_.AcceptLoss(members_.servers()[request.server()]));
  response.set_shards(shards);
  response.set_unserved(shards_.unserved());
  return response;
}

absl::StatusOr<v1::MoveResponse> Membership::Move(const v1::MoveRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckDecidable(request.cancel() || request.level() ? 0 : request.server()));
  return moves_.Move(request);
}

absl::StatusOr<v1::DrainResponse> Membership::Drain(const v1::DrainRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckDecidable(request.server()));
  return moves_.Drain(request);
}

absl::StatusOr<v1::PauseTrainingResponse> Membership::PauseTraining(const v1::PauseTrainingRequest& request) {
  std::vector<std::string> unfinished = ranges_.Unfinished();
  // Only the order of steps shows that a push repeats a batch which another worker brought in place of a dead one.
  for (const MemberPlace* server : members_.ServersWithoutDeaths()) {
    unfinished.push_back(absl::StrCat(members_.Describe(*server), " is to hear of a worker's death"));
  }
  return pause_.Pause(request, std::move(unfinished));
}

absl::Status Membership::CheckDecidable(uint32_t server) const {
  if (server >= options_.servers) {
    return absl::InvalidArgumentError(absl::StrCat("there is no ps ", server, " in this cluster: cluster.servers is ",
                                                   options_.servers, ", and indices start at 0"));
  }
  if (shards_.mapped()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "there is no shard map yet: not all servers that the cluster begins with have joined");
}

absl::StatusOr<v1::ReportSyncResponse> Membership::ReportSync(const v1::ReportSyncRequest& request) {
  LODESTONE_RETURN_IF_ERROR(members_.CheckAlive(request.incarnation()));
  MemberPlace* const owner = members_.Find(request.incarnation());
  if (owner->role != v1::ROLE_SERVER) {
    return absl::InvalidArgumentError(
        absl::StrCat(members_.Describe(*owner), " owns no shards, and reports followers"));
  }
  for (const auto& report : request.reports()) {
    if (report.shard() < options_.shards) continue;
    return absl::InvalidArgumentError(absl::StrCat(members_.Describe(*owner), " reports the follower of shard ",
                                                   report.shard(), ", and there are ", options_.shards,
                                                   " (cluster.shards)"));
  }
  if (request.sequence() < owner->report_sequence) {
    return absl::AbortedError(absl::StrCat("report ", request.sequence(), " of ", members_.Describe(*owner),
                                           " comes after its report ", owner->report_sequence));
  }
  owner->report_sequence = request.sequence();
  HeardOf(owner);
  v1::ReportSyncResponse response;
  for (const auto& report : request.reports()) response.add_accepted(shards_.Report(*owner, report));
  moves_.Advance();
  response.set_route_epoch(shards_.epoch());
  return response;
}

bool Membership::NoteGone(Incarnation incarnation, int64_t ended_ms) {
  MemberPlace* const place = members_.Find(incarnation);
  if (place == nullptr || !members_.Alive(*place)) return false;
  if (options_.time->NowMs() - place->last_contact_ms < ended_ms) return false;
  members_.NoteGone(place);
  return true;
}

void Membership::NoteGoneAt(const std::string& address) {
  for (const MemberPlace& server : members_.servers()) {
    if (server.address != address || !server.silent || !members_.Alive(server)) continue;
    members_.NoteGone(members_.Find(server.incarnation));
  }
}

std::vector<std::string> Membership::TakeExpired() {
  std::vector<std::string> lines;
  members_.Expire([&](const MemberPlace& place) {
    lines.push_back(place.gone ? absl::StrCat(members_.Describe(place), " is dead: ", members_.LastHeard(place))
                               : absl::StrFormat("%s was not heard of for %.1f s", members_.Describe(place),
                                                 members_.SecondsSinceContact(place)));
    if (place.role == v1::ROLE_SERVER) shards_.TakeOut(place);
  });
  if (lines.empty()) return lines;
  shards_.AssignFollowers();
  moves_.Advance();
  return lines;
}

v1::ClusterStatus Membership::Status() const {
  v1::ClusterStatus status = ClusterStatusOf(options_, members_, shards_);
  moves_.FillStatus(&status);
  rebalancer_.FillStatus(&status);
  for (const uint32_t server : refused_) {
    status.add_unserved(absl::StrCat("what ps ", server,
                                     " has served before: it was refused, as the coordinator has lost "
                                     "its state and given its shards to others (see \"More ps\" in server/README.md)"));
  }
  if (validations_.state().claimed() > 0) *status.mutable_validations() = validations_.state();
  if (ranges_.has_run()) *status.mutable_ranges() = ranges_.state();
  return status;
}

v1::CoordinatorState Membership::SaveState() const {
  v1::CoordinatorState state;
  state.set_format(kStateFormat);
  state.set_cluster(options_.cluster);
  state.set_shards(options_.shards);
  state.set_servers(options_.servers);
  state.set_workers(static_cast<uint32_t>(members_.workers().size()));
  shards_.Save(&state);
  moves_.Save(&state);
  members_.Save(&state);
  state.set_launch(launch_);
  *state.mutable_validations() = validations_.state();
  if (ranges_.has_run()) *state.mutable_ranges() = ranges_.state();
  *state.mutable_order() = pause_.state();
  return state;
}

absl::Status Membership::Restore(const v1::CoordinatorState& state) {
  LODESTONE_RETURN_IF_ERROR(CheckState(state, options_));
  shards_.Restore(state);
  moves_.Restore(state);
  members_.Restore(state);
  launch_ = state.launch();
  validations_.Restore(state.validations());
  pause_.Restore(state.order());
  ranges_.Restore(state.ranges());
  // What ended before, or with the last life of the coordinator, and was not acted on.
  for (const MemberPlace& server : members_.servers()) {
    if (server.incarnation == 0) continue;
    if (!shards_.mapped()) moves_.TakePlace(server.index, server.data.has_value() && server.data->served());
    if (!members_.Alive(server)) shards_.TakeOut(server);
  }
  return absl::OkStatus();
}

}  // namespace lodestone::server
