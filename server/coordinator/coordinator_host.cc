#include "server/coordinator/coordinator_host.h"

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/incarnation.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/rpc/tuning.h"
#include "server/coordinator/saved_state.h"
#include "server/coordinator/state_file.h"

namespace lodestone::server {
namespace {

constexpr char kElsewhere[] = "this ps does not serve the coordinator: the one with index 0 does";

RebalanceOptions RebalanceOptionsOf(const v1::CoordinatorConfig& config) {
  RebalanceOptions options;
  options.automatic = config.rebalance() == v1::CoordinatorConfig::AUTO;
  options.rule.difference = config.rebalance_rule().difference_percent() / 100.0;
  options.rule.bytes_min = static_cast<double>(config.rebalance_rule().bytes_min());
  options.rule.traffic_bytes_per_second_min =
      static_cast<double>(config.rebalance_rule().traffic_bytes_per_second_min());
  options.sustained_ms = config.rebalance_rule().sustained_ms();
  options.shard_rest_ms = config.rebalance_rule().shard_rest_ms();
  return options;
}

Membership::Options MembershipOptions(const v1::Config& config, const TimeSource* time) {
  Membership::Options options;
  options.cluster = config.cluster().name();
  options.servers = config.cluster().servers();
  options.servers_at_start = config.cluster().servers_at_start();
  options.workers = config.cluster().workers();
  options.shards = config.cluster().shards();
  options.replicas = config.cluster().replicas();
  options.lease_ms = config.coordinator().lease_ms();
  options.worker_lease_ms = config.coordinator().worker_lease_ms();
  options.ends_with_server_0 = config.coordinator().etcd().empty();
  options.first_incarnation = FirstIncarnation(std::chrono::system_clock::now());
  options.rebalance = RebalanceOptionsOf(config.coordinator());
  options.watches_processes = true;
  options.time = time;
  return options;
}

}  // namespace

CoordinatorHost::CoordinatorHost(const v1::Config& config, const TimeSource* time,
                                 std::function<void(bool serves)> on_change)
    : config_(config), time_(time), on_change_(std::move(on_change)) {}

absl::Status CoordinatorHost::Prepare(std::optional<Checkpoints> checkpoints, Access* access) {
  checkpoints_ = std::move(checkpoints);
  access_ = access;
  if (!config_.coordinator().etcd().empty()) return PrepareElected();
  return config_.server().index() == 0 ? PrepareOwn() : absl::OkStatus();
}

absl::Status CoordinatorHost::PrepareOwn() {
  if (!checkpoints_.has_value()) {
    own_.emplace(MembershipOptions(config_, time_), nullptr, nullptr, access_);
    return absl::OkStatus();
  }
  const std::string folder = absl::StrCat(config_.server().data_dir(), "/ps-0");
  const std::string path = absl::StrCat(folder, "/coordinator");
  LODESTONE_RETURN_IF_ERROR(MakeFolders(folder));
  LODESTONE_ASSIGN_OR_RETURN(const std::optional<v1::CoordinatorState> state, ReadCoordinatorState(path));
  own_.emplace(
      MembershipOptions(config_, time_),
      [path](const v1::CoordinatorState& fresh) { return WriteCoordinatorState(path, fresh); }, nullptr, access_);
  checkpoints_->keep([this] { return own_->State(); });
  if (state.has_value()) return Annotate(own_->Restore(*state), path);
  LODESTONE_ASSIGN_OR_RETURN(const std::optional<v1::CoordinatorState> kept, StateOfCheckpoints());
  if (!kept.has_value()) return absl::OkStatus();
  return Annotate(own_->Restore(*kept), "the coordinator's state in a checkpoint");
}

absl::Status CoordinatorHost::PrepareElected() {
  ElectedCoordinator::Options options;
  LODESTONE_ASSIGN_OR_RETURN(options.election.etcd_credentials, EtcdCredentials(config_.coordinator()));
  options.membership = MembershipOptions(config_, time_);
  options.election.cluster = config_.cluster().name();
  options.election.etcd.assign(config_.coordinator().etcd().begin(), config_.coordinator().etcd().end());
  options.election.lease_ms = config_.coordinator().lease_ms();
  options.election.time = time_;
  options.on_change = on_change_;
  options.access = access_;
  if (checkpoints_.has_value()) {
    options.first_state = [this] { return StateOfCheckpoints(); };
    checkpoints_->keep([this] { return elected_->State(); });
  }
  elected_.emplace(std::move(options));
  return absl::OkStatus();
}

absl::StatusOr<std::optional<v1::CoordinatorState>> CoordinatorHost::StateOfCheckpoints() const {
  LODESTONE_ASSIGN_OR_RETURN(std::optional<v1::CoordinatorState> kept, checkpoints_->kept());
  if (kept.has_value()) *kept = KeptOf(*kept);
  return kept;
}

void CoordinatorHost::Register(grpc::ServerBuilder* builder) {
  if (own_.has_value()) control_.emplace(&*own_, &*own_, CallbackThreadsAreBusy);
  if (elected_.has_value()) control_.emplace(&*elected_, &*elected_, CallbackThreadsAreBusy);
  if (control_.has_value()) control_->Register(builder);
}

void CoordinatorHost::Listen() {
  if (control_.has_value()) control_->Start();
}

void CoordinatorHost::StopListening() {
  if (control_.has_value()) control_->Shutdown();
}

void CoordinatorHost::Start(const std::string& address) {
  if (own_.has_value()) on_change_(true);
  if (elected_.has_value()) elected_->Start(address);
}

void CoordinatorHost::SetMap(const ShardMap& map) {
  if (!elected_.has_value()) return;
  std::vector<ProcessWatch::Process> peers;
  for (uint32_t server = 0; server < map.servers(); ++server) {
    if (server == config_.server().index() || map.Away(server)) continue;
    peers.push_back({.life = map.IncarnationOf(server), .address = map.AddressOf(server)});
  }
  elected_->SetPeers(std::move(peers));
}

void CoordinatorHost::Shutdown() {
  if (own_.has_value()) own_->Shutdown();
  if (elected_.has_value()) elected_->Shutdown();
}

void CoordinatorHost::FillStatus(v1::StatusResponse* status) const {
  if (own_.has_value()) own_->FillStatus(status);
  if (elected_.has_value()) elected_->FillStatus(status);
}

std::optional<v1::EventsResponse> CoordinatorHost::Events(uint64_t after_id) const {
  if (own_.has_value()) return own_->Events(after_id);
  return elected_.has_value() ? elected_->Events(after_id) : std::nullopt;
}

std::optional<v1::HistoryResponse> CoordinatorHost::TellHistory() const {
  if (own_.has_value()) return own_->TellHistory();
  return elected_.has_value() ? elected_->TellHistory() : std::nullopt;
}

void CoordinatorHost::Promote(const v1::PromoteRequest& request,
                              std::function<void(absl::StatusOr<v1::PromoteResponse>)> done) {
  if (own_.has_value()) return own_->Promote(request, std::move(done));
  if (elected_.has_value()) return elected_->Promote(request, std::move(done));
  done(absl::UnavailableError(kElsewhere));
}

void CoordinatorHost::AcceptLoss(const v1::AcceptLossRequest& request,
                                 std::function<void(absl::StatusOr<v1::AcceptLossResponse>)> done) {
  if (own_.has_value()) return own_->AcceptLoss(request, std::move(done));
  if (elected_.has_value()) return elected_->AcceptLoss(request, std::move(done));
  done(absl::UnavailableError(kElsewhere));
}

void CoordinatorHost::Move(const v1::MoveRequest& request, std::function<void(absl::StatusOr<v1::MoveResponse>)> done) {
  if (own_.has_value()) return own_->Move(request, std::move(done));
  if (elected_.has_value()) return elected_->Move(request, std::move(done));
  done(absl::UnavailableError(kElsewhere));
}

void CoordinatorHost::Drain(const v1::DrainRequest& request,
                            std::function<void(absl::StatusOr<v1::DrainResponse>)> done) {
  if (own_.has_value()) return own_->Drain(request, std::move(done));
  if (elected_.has_value()) return elected_->Drain(request, std::move(done));
  done(absl::UnavailableError(kElsewhere));
}

void CoordinatorHost::PauseTraining(const v1::PauseTrainingRequest& request,
                                    std::function<void(absl::StatusOr<v1::PauseTrainingResponse>)> done) {
  if (own_.has_value()) return own_->PauseTraining(request, std::move(done));
  if (elected_.has_value()) return elected_->PauseTraining(request, std::move(done));
  done(absl::UnavailableError(kElsewhere));
}

}  // namespace lodestone::server
