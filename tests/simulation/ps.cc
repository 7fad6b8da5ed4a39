#include "tests/simulation/ps.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/retry.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"

namespace lodestone::simulation {
namespace {

constexpr int64_t kRouteAgainMs = 100;
constexpr int64_t kDrainUs = 100'000;  // For calls that are under way to be answered.

server::Store::Options StoreOptions(const v1::Config& config, const TimeSource* time) {
  server::Store::Options options;
  options.seed = config.cluster().seed();
  options.shards = config.cluster().shards();
  options.executors = 1;
  options.turn_ns = 0;  // Pulls that wait have their turn, however fast this machine is.
  options.time = time;
  return options;
}

std::string BytesOf(const google::protobuf::MessageLite& header, std::span<const grpc::Slice> payload) {
  std::vector<grpc::Slice> slices;
  LODESTONE_CHECK(BuildMessage(header, payload).Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

}  // namespace

std::string AddressOf(uint32_t index) { return absl::StrCat("ps-", index, ":7000"); }

uint32_t IndexOf(const std::string& address) {
  uint32_t index = 0;
  LODESTONE_CHECK(absl::SimpleAtoi(address.substr(3, address.find(':') - 3), &index));
  return index;
}

Ps::Ps(const v1::Config& config, const ProcessRef& process, Network* network, Disk* disk, const Directory* directory)
    : config_(config),
      process_(process),
      network_(network),
      kernel_(network->kernel()),
      directory_(directory),
      time_(kernel_),
      calls_(disk->CallsOf(process)),
      store_(StoreOptions(config, &time_)),
      lease_ms_(config.coordinator().lease_ms()) {
  absl::StatusOr<std::unique_ptr<server::Storage>> opened = server::Storage::Open(config_, &time_, nullptr, calls_);
  if (!opened.ok()) {
    failure_ = opened.status();
    return;
  }
  storage_ = *std::move(opened);
  data_ = storage_->dir().data();
  if (server::Replication::IsWanted(config_)) {
    replication_ = std::make_unique<server::Replication>(config_, DependenciesOf(), &store_);
    storage_->checkpointer().SetListener([this] { replication_->ConfirmOnDisk(); });
    storage_->checkpointer().KeepMarks(
        [this](ShardId shard, Version version) { return replication_->MarkAt(shard, version); });
  } else {
    store_.gate().SetCheck([this] { return CheckPlace(); });
  }
  member_ = Thread([this] { RunMember(); });
  ticks_ = Thread([this] { RunTicks(); });
}

Ps::~Ps() {
  LODESTONE_CHECK(!process_->alive);
  while (leaving_ && !left_) kernel_->Wait(&left_, kernel_->NowMs() + 1);
  if (member_.joinable()) member_.join();
  if (storage_ != nullptr) storage_->Stop();
  if (replication_ != nullptr) replication_->Shutdown();
  if (ticks_.joinable()) ticks_.join();
  if (begin_.joinable()) begin_.join();
  store_.shards().executors().Drain();
  kernel_->AwaitEventsOf(process_.get());
  while (followers_ > 0) kernel_->Wait(&followers_, kernel_->NowMs() + 1);
  if (storage_ != nullptr) storage_->Close();
  storage_.reset();
  replication_.reset();
}

void Ps::Leave() {
  leaving_ = true;
  kernel_->Notify(&ask_route_);
  member_.join();
  lease_ends_ms_ = 0;
  Heartbeat().IgnoreError();
  if (replication_ != nullptr) replication_->Shutdown();
  store_.StopWaits();
  drained_ = true;
  kernel_->Sleep(kDrainUs);
  ticks_.join();
  begin_.join();
  store_.StopSweeps();
  store_.shards().executors().Drain();
  storage_->Close();
  left_ = true;
  kernel_->Notify(&left_);
}

server::Replication::Dependencies Ps::DependenciesOf() {
  server::Replication::Dependencies dependencies;
  dependencies.report = [this](const v1::ReportSyncRequest& request) { return ReportSync(request); };
  dependencies.ask_route = [this] {
    ask_route_ = true;
    kernel_->Notify(&ask_route_);
  };
  dependencies.incarnation = [this] { return incarnation_; };
  dependencies.lease_ends_ms = [this] { return lease_ends_ms_; };
  dependencies.on_owners_changed = [] {};
  dependencies.on_state = [this](ShardId) { storage_->WriteArrivedSoon(); };
  dependencies.on_disk = [this](ShardId shard) { return storage_->checkpointer().HoldsStateOf(shard); };
  dependencies.note_shared = [this] { return storage_->NoteShared(); };
  dependencies.check_place = [this] { return CheckPlace(); };
  dependencies.updates = [this] { return storage_->updates(); };
  dependencies.open = [this](const std::string& address) {
    return MakeFollowPlace(network_, process_, [this, address] { return directory_->find(address); });
  };
  return dependencies;
}

absl::Status Ps::CheckPlace() const {
  return displaced_ ? absl::AbortedError("another process has its place") : absl::OkStatus();
}

void Ps::Pause(int64_t ms) {
  const int64_t until_ms = kernel_->NowMs() + ms;
  while (Goes() && !ask_route_ && !ask_heartbeat_ && kernel_->NowMs() < until_ms) {
    kernel_->Wait(&ask_route_, until_ms);
  }
}

void Ps::RunMember() {
  Backoff backoff(config_.server().index());
  while (Goes()) {  // AwaitRoute.
    const absl::Status status = [&]() -> absl::Status {
      if (incarnation_ == 0) LODESTONE_RETURN_IF_ERROR(Join());
      absl::Status beat = Heartbeat();
      if (absl::IsFailedPrecondition(beat)) beat = Join();
      LODESTONE_RETURN_IF_ERROR(beat);
      return FetchRoute();
    }();
    if (status.ok() && epoch_ > 0) break;
    kernel_->Sleep(1000 * std::min<int64_t>(backoff.NextMs(), 100));
  }
  int64_t next_beat_ms = kernel_->NowMs() + HeartbeatMs();
  int64_t next_route_ms = Simulation::kNever, fetched_ms = 0;
  while (Goes()) {  // KeepLease.
    Pause(std::max<int64_t>(1, std::min(next_beat_ms, next_route_ms) - kernel_->NowMs()));
    if (!Goes()) return;
    if (std::exchange(ask_route_, false)) next_route_ms = std::min(next_route_ms, fetched_ms + kRouteAgainMs);
    if (std::exchange(ask_heartbeat_, false)) next_beat_ms = 0;
    if (kernel_->NowMs() >= next_beat_ms) {
      const uint64_t known = epoch_;
      absl::Status status = incarnation_ == 0 ? absl::OkStatus() : Heartbeat();
      if (incarnation_ == 0) {
        status = Join();
        if (status.ok()) next_route_ms = 0;
        displaced_ = displaced_ || absl::IsAlreadyExists(status);
      }
      next_beat_ms = kernel_->NowMs() + (status.ok() ? HeartbeatMs() : lease_ms_ / 3);
      if (told_epoch_ > known) next_route_ms = 0;
    }
    if (kernel_->NowMs() >= next_route_ms) {
      fetched_ms = kernel_->NowMs();
      const uint64_t before = epoch_;
      const absl::Status status = FetchRoute();
      const bool newer = status.ok() && (epoch_ > before || !joined_again_);
      next_route_ms = newer && told_epoch_ <= epoch_ ? Simulation::kNever : kernel_->NowMs() + kRouteAgainMs;
    }
  }
}

absl::Status Ps::Join() {
  v1::JoinRequest request;
  request.set_role(v1::ROLE_SERVER);
  request.set_address(AddressOf(config_.server().index()));
  request.set_index_plus_one(config_.server().index() + 1);
  request.set_cluster(config_.cluster().name());
  request.set_shards(config_.cluster().shards());
  request.set_token(storage_->dir().token());
  request.set_predecessor(storage_->dir().former_token());
  *request.mutable_data() = data_;
  if (storage_->shared()) request.mutable_data()->set_shared(true);
  if (epoch_ > 0) request.mutable_data()->set_served(true);
  request.mutable_data()->set_knows_learners(true);
  request.set_former_incarnation(former_incarnation_);
  const int64_t sent_ms = kernel_->NowMs();
  LODESTONE_ASSIGN_OR_RETURN(const std::string answer,
                             directory_->coordinator(Method::kJoin, request.SerializeAsString(), 5000));
  v1::JoinResponse response;
  LODESTONE_CHECK(response.ParseFromString(answer));
  lease_ms_ = response.lease_ms();
  if (epoch_ > 0) joined_again_ = true;
  lease_known_ms_ = sent_ms + lease_ms_;
  if (!joined_again_) lease_ends_ms_ = lease_known_ms_;
  incarnation_ = former_incarnation_ = response.incarnation();
  return absl::OkStatus();
}

absl::Status Ps::Heartbeat() {
  v1::HeartbeatRequest request;
  request.set_incarnation(incarnation_);
  request.set_leaving(leaving_);
  request.mutable_server()->set_table_bytes(store_.tables().totals().second);
  request.set_generation(storage_->generation());
  if (wants_copies_ && replication_ != nullptr) {
    for (v1::ShardCopy& copy : replication_->Copies()) *request.add_copies() = std::move(copy);
  }
  request.set_workers_ended_from(workers_ended_to_);
  const int64_t sent_ms = kernel_->NowMs();
  const auto answer = directory_->coordinator(Method::kHeartbeat, request.SerializeAsString(), CallMs());
  if (absl::IsFailedPrecondition(answer.status())) {
    kernel_->Trace(absl::StrCat(process_->name, " has lost its lease"));
    incarnation_ = 0;
    lease_known_ms_ = lease_ends_ms_ = std::min(lease_ends_ms_, sent_ms);
  }
  LODESTONE_RETURN_IF_ERROR(answer.status());
  v1::HeartbeatResponse response;
  LODESTONE_CHECK(response.ParseFromString(*answer));
  wants_copies_ = response.wants_copies();
  if (replication_ != nullptr && response.all_in_sync()) replication_->FreeOthers();
  workers_ended_to_ = response.workers_ended_to();
  store_.KeepSessions({response.ranges_open().data(), static_cast<size_t>(response.ranges_open_size())});
  if (response.workers_ended_size() > 0) {
    store_.EndSessions({response.workers_ended().data(), static_cast<size_t>(response.workers_ended_size())});
  }
  lease_ms_ = response.lease_ms();
  lease_known_ms_ = sent_ms + lease_ms_;
  if (!joined_again_) lease_ends_ms_ = lease_known_ms_;
  told_epoch_ = response.route_epoch();
  return absl::OkStatus();
}

absl::Status Ps::FetchRoute() {
  v1::RouteRequest request;
  request.set_role(v1::ROLE_SERVER);
  request.set_incarnation(former_incarnation_);
  fetches_route_ = true;
  const auto answer = directory_->coordinator(Method::kRoute, request.SerializeAsString(), CallMs());
  fetches_route_ = false;
  LODESTONE_RETURN_IF_ERROR(answer.status());
  v1::RouteResponse route;
  LODESTONE_CHECK(route.ParseFromString(*answer));
  LODESTONE_ASSIGN_OR_RETURN(const ShardMap map, ShardMap::FromProto(route));
  if (map.epoch() <= epoch_ && !joined_again_) return absl::OkStatus();
  const bool first = epoch_ == 0;
  epoch_ = map.epoch();
  kernel_->Trace(absl::StrCat(process_->name, " has the map of epoch ", epoch_));
  if (first) {
    begin_ = Thread([this, map] { Begin(map); });
  } else if (replication_ != nullptr) {
    replication_->SetMap(map);
  }
  joined_again_ = false;
  lease_ends_ms_ = lease_known_ms_;
  return absl::OkStatus();
}

void Ps::Begin(const ShardMap& map) {
  const uint32_t index = config_.server().index();
  LODESTONE_CHECK(map.LostBy(index).empty());  // No folder is lost here.
  std::vector<uint64_t> terms(map.shards());
  for (ShardId shard = 0; shard < map.shards(); ++shard) terms[shard] = map.TermOf(shard);
  store_.shards().SetTerms(terms);
  std::vector<ShardId> copies;
  if (replication_ != nullptr) {
    replication_->Prepare(map);
    const bool shared = config_.cluster().replicas() > 1 || storage_->dir().has_followed();
    if (shared && !storage_->dir().goes_back()) {
      copies = replication_->CopiesToBringBack(map, storage_->dir().has_log());
    }
  }
  const absl::Status status = storage_->Recover(&store_, map.ShardsOf(index), copies);
  if (!process_->alive) return;
  if (!status.ok()) {
    failure_ = status;
    kernel_->Trace(absl::StrCat(process_->name, " cannot begin"));
    LODESTONE_LOG(ERROR, "simulation", "{} cannot begin: {}", process_->name, status.ToString());
    return;
  }
  if (replication_ != nullptr) replication_->Begin();
  serves_ = true;
  kernel_->Trace(
      absl::StrCat(process_->name, " serves ", map.ShardsOf(index).size(), " shards of epoch ", map.epoch()));
  ask_heartbeat_ = true;
  kernel_->Notify(&ask_route_);
}

void Ps::RunTicks() {
  while (Goes()) {
    kernel_->Sleep(1'000'000);
    if (process_->alive) store_.Tick();
  }
}

absl::StatusOr<v1::ReportSyncResponse> Ps::ReportSync(const v1::ReportSyncRequest& request) {
  MutexLock in_turn(&report_mu_);
  v1::ReportSyncRequest numbered = request;
  numbered.set_incarnation(incarnation_);
  numbered.set_sequence(++reports_);
  if (incarnation_ == 0) return absl::UnavailableError("this ps has not joined the coordinator at present");
  const auto answer = directory_->coordinator(Method::kReportSync, numbered.SerializeAsString(), CallMs());
  if (absl::IsFailedPrecondition(answer.status())) ask_heartbeat_ = true;
  LODESTONE_RETURN_IF_ERROR(answer.status());
  v1::ReportSyncResponse response;
  LODESTONE_CHECK(response.ParseFromString(*answer));
  if (response.route_epoch() > epoch_) ask_route_ = true;
  kernel_->Notify(&ask_route_);
  return response;
}

void Ps::TakeFollower(const LineRef& line) {
  if (replication_ == nullptr) return;
  ++followers_;
  TakeFollowCall(
      network_, line, [this](server::FollowStream::Wire* wire) { return replication_->Follow(wire); },
      [this] { --followers_; });
}

void Ps::TakeExchange(const LineRef& line) {
  line->Listen(
      1, [this, line = std::weak_ptr(line)](const std::string& message) { TakeCall(line, message); }, nullptr);
}

void Ps::TakeCall(const std::weak_ptr<Line>& line, const std::string& message) {
  if (drained_) return;
  const grpc::Slice slice(message);
  v1::ExchangeRequest request;
  Payload payload;
  LODESTONE_CHECK(ParseMessage(grpc::ByteBuffer(&slice, 1), &request, &payload).ok() && request.calls_size() == 1);
  v1::Call& call = *request.mutable_calls(0);
  const auto answer = [line, id = call.id()](const absl::Status& status, v1::Answer header,
                                             std::span<const grpc::Slice> values) {
    header.set_id(id);
    header.set_code(static_cast<uint32_t>(status.code()));
    header.set_error(std::string(status.message()));
    v1::ExchangeResponse response;
    *response.add_answers() = std::move(header);
    if (const LineRef to = line.lock(); to != nullptr) to->Send(1, BytesOf(response, values));
  };
  if (call.has_ensure_tables()) {
    store_.EnsureTables(call.ensure_tables(), [answer](absl::StatusOr<v1::EnsureTablesResponse> response) {
      v1::Answer header;
      if (response.ok()) *header.mutable_ensure_tables() = *std::move(response);
      answer(response.status(), header, {});
    });
  } else if (call.has_push()) {
    store_.pushes().Push(std::move(*call.mutable_push()), payload, [answer](absl::StatusOr<v1::PushResponse> response) {
      v1::Answer header;
      if (response.ok()) *header.mutable_push() = *std::move(response);
      answer(response.status(), header, {});
    });
  } else {
    store_.pulls().Pull(std::move(*call.mutable_pull()), payload,
                        [answer](absl::StatusOr<server::PullPath::Values> values) {
                          v1::Answer header;
                          if (!values.ok()) return answer(values.status(), header, {});
                          *header.mutable_pull() = values->header;
                          answer(absl::OkStatus(), header, values->payload);
                        });
  }
}

}  // namespace lodestone::simulation
