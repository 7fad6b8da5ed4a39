#include "server/process.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/nonce.h"
#include "common/base/status.h"
#include "common/http/monitoring.h"
#include "common/io/machine_limits.h"
#include "common/rpc/channel.h"
#include "common/rpc/coordinator_channel.h"
#include "common/telemetry/log.h"
#include "common/wire/ps_name.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "server/checkpoint/manifest.h"
#include "server/listen.h"
#include "server/monitoring/ps_metrics.h"
#include "server/replication/replication.h"

namespace lodestone::server {
namespace {

constexpr std::chrono::milliseconds kTickPeriod{1000};
constexpr int kSyncThreadsMax = 8;   // Only reflection uses gRPC's synchronous threads.
constexpr int kSyncPollMs = 60'000;  // An idle one wakes this often.

// Health is asked for by these names, and by "" for the ps as a whole.
constexpr char kParameterServerName[] = "lodestone.v1.ParameterServer";
constexpr char kCoordinatorName[] = "lodestone.v1.Coordinator";
constexpr char kAdminName[] = "lodestone.v1.Admin";

Store::Options StoreOptions(const v1::Config& config, const TimeSource* time) {
  Store::Options options;
  options.seed = config.cluster().seed();
  options.shards = config.cluster().shards();
  options.executors = config.server().executors() > 0 ? config.server().executors() : MachineCores();
  options.memory_max_bytes = config.server().memory_max_bytes();
  if (options.memory_max_bytes == 0) {
    // Nine tenths of what there is: a table beyond it is refused, not the process killed.
    options.memory_max_bytes = MachineMemoryBytes() / 10 * 9;
  }
  options.time = time;
  return options;
}

uint64_t CallMemoryBytes(const v1::Config& config) {
  return std::max(StoreOptions(config, nullptr).memory_max_bytes / limits::kCallMemoryParts,
                  limits::kCallMemoryMessages * config.server().message_max_bytes());
}

absl::Status CheckConfig(const v1::Config& config) {
  const v1::ServerConfig& server = config.server();
  LODESTONE_RETURN_IF_ERROR(CheckAddresses(server.listen(), server.advertise()));
  if (!server.http_listen().empty()) {
    LODESTONE_RETURN_IF_ERROR(Annotate(ParseHostPort(server.http_listen()).status(), "server.http_listen"));
  }
  if (server.index() >= config.cluster().servers()) {
    return absl::InvalidArgumentError(absl::StrCat("server.index is ", server.index(), ", and cluster.servers is ",
                                                   config.cluster().servers(), ": indices start at 0"));
  }
  if (server.index() > 0 && config.coordinator().address().empty() && config.coordinator().etcd().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "server.index is ", server.index(),
        ": coordinator.address must be the host:port of the ps with index 0 (or coordinator.etcd be set)"));
  }
  return absl::OkStatus();
}

// How memory that workers of this machine offer is used; null: it is refused.
std::function<SharedUse()> SharedUseOf(const v1::Config& config, Security* security, const Store* store) {
  // Nothing but the call vouches for its maker.
  const bool asks = security->access() != nullptr || security->serves_by_tls();
  if (!config.cluster().shared_memory() || asks) return nullptr;
  return [store] { return store->log().ReadsAfterAnswers() ? SharedUse::kCopied : SharedUse::kRead; };
}

}  // namespace

ServerProcess::ServerProcess(const v1::Config& config, std::function<void(absl::Status)> on_ready,
                             std::unique_ptr<Security> security)
    : config_(config),
      name_(absl::StrCat("ps ", config.server().index())),
      on_ready_(std::move(on_ready)),
      security_(std::move(security)),
      events_(&time_),
      refused_(name_, &time_, &events_),
      store_(StoreOptions(config, &time_)),
      call_memory_(CallMemoryBytes(config), &time_),
      broadcaster_(&store_, config.server().subscribers_max()),
      coordinator_(config, &time_, [this](bool serves) { OnCoordinator(serves); }),
      exchange_(&store_, &broadcaster_, identity_.incarnation = DrawNonce(),
                PsName(config.server().index(), config.cluster().name()), security_->access(),
                SharedUseOf(config, security_.get(), &store_), &call_memory_),
      parameters_(&store_, &broadcaster_, &exchange_, identity_.incarnation, security_->access(), &call_memory_),
      admin_(AdminHandlers()) {
  store_.pushes().SetRefusalListener(
      [this](Incarnation worker, const absl::Status& why) { refused_.Note(worker, why); });
  security_->Know(
      {[this](TableId table) { return store_.tables().NameOf(table); }, [this] { return store_.tables().totals(); }});
  admin_.SetAudit(security_->audit(), security_->access());
  identity_.index = config.server().index();
  identity_.started = std::chrono::steady_clock::now();
}

AdminService::Handlers ServerProcess::AdminHandlers() {
  AdminService::Handlers handlers;
  handlers.fill_status = [this](v1::StatusResponse* status) { status_->FillStatus(status); };
  handlers.promote = [this](const v1::PromoteRequest& request, auto done) {
    coordinator_.Promote(request, std::move(done));
  };
  handlers.accept_loss = [this](const v1::AcceptLossRequest& request, auto done) {
    coordinator_.AcceptLoss(request, std::move(done));
  };
  handlers.check_checkpoint_name = [](const std::string& name) { return CheckCheckpointName(name); };
  if (Storage::IsWanted(config_)) {
    handlers.checkpoint = [this](const std::string& name) { return storage_->Checkpoint(name); };
    handlers.roll_back = [this](const v1::RollbackRequest& request) { return storage_->Rollback(request); };
  }
  if (Replication::IsWanted(config_)) handlers.verify_replicas = [this] { return replication_->Verify(); };
  handlers.events = [this](uint64_t after_id) { return status_->Events(after_id); };
  handlers.history = [this] { return status_->History(); };
  return handlers;
}

ServerProcess::~ServerProcess() { Shutdown(0); }

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(const v1::Config& config,
                                                                    std::function<void(absl::Status)> on_ready) {
  LODESTONE_RETURN_IF_ERROR(CheckConfig(config));
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<Security> security, Security::Open(config));
  std::unique_ptr<ServerProcess> process(new ServerProcess(config, std::move(on_ready), std::move(security)));
  LODESTONE_RETURN_IF_ERROR(process->StartParts());
  return process;
}

absl::Status ServerProcess::StartParts() {
  LODESTONE_ASSIGN_OR_RETURN(storage_, Storage::Open(config_, &time_, &events_));
  if (Replication::IsWanted(config_)) {
    StartReplication();
  } else {
    store_.gate().SetCheck([this] { return CheckPlace(); });
  }
  LODESTONE_RETURN_IF_ERROR(PrepareCoordinator());
  status_.emplace(StatusSources());
  LODESTONE_RETURN_IF_ERROR(Listen());
  LODESTONE_RETURN_IF_ERROR(StartHttp());
  coordinator_.Start(identity_.address);
  StartMember();
  ticks_ = std::thread([this] { RunTicks(); });
  return absl::OkStatus();
}

absl::Status ServerProcess::PrepareCoordinator() {
  if (config_.server().data_dir().empty()) return coordinator_.Prepare(std::nullopt, security_->access());
  CoordinatorHost::Checkpoints checkpoints;
  checkpoints.keep = [this](std::function<v1::CoordinatorState()> state) {
    storage_->checkpointer().KeepCoordinator(std::move(state));
  };
  checkpoints.kept = [this] { return storage_->checkpointer().CoordinatorInCheckpoints(); };
  return coordinator_.Prepare(std::move(checkpoints), security_->access());
}

StatusReporter::Sources ServerProcess::StatusSources() {
  StatusReporter::Sources sources;
  sources.store = &store_;
  sources.storage = storage_.get();
  sources.broadcaster = &broadcaster_;
  sources.replication = replication_.get();
  sources.coordinator = &coordinator_;
  sources.security = security_.get();
  sources.events = &events_;
  sources.identity = [this] { return IdentityNow(); };
  sources.member = [this] { return MemberNow(); };
  sources.add_waits = [this](v1::StatusResponse* status) {
    call_memory_.FillStatus(name_, status);
    MutexLock lock(&mu_);
    if (serving_ && !synced_ && to_sync_ > 0) {
      v1::WaitStatus* const wait = status->add_waits();
      wait->set_who(name_);
      wait->set_what(absl::StrCat(to_sync_, " shards that it owns or follows to have two copies"));
      wait->set_seconds(static_cast<double>(time_.NowMs() - began_ms_) / 1000);
    }
    if (lost_.empty()) return;
    v1::WaitStatus* const wait = status->add_waits();
    wait->set_who(name_);
    wait->set_what(absl::StrCat("an operator: ", lost_));
    wait->set_seconds(static_cast<double>(time_.NowMs() - lost_since_ms_) / 1000);
  };
  return sources;
}

ProcessIdentity ServerProcess::IdentityNow() const {
  MutexLock lock(&mu_);
  return identity_;
}

void ServerProcess::StartReplication() {
  Replication::Dependencies dependencies;
  // Before there is a member this ps owns and follows nothing, and has nothing to ask.
  dependencies.report = [this](const v1::ReportSyncRequest& request) { return MemberNow()->ReportSync(request); };
  dependencies.ask_route = [this] { MemberNow()->AskRoute(); };
  dependencies.incarnation = [this] { return MemberNow()->incarnation(); };
  dependencies.lease_ends_ms = [this] {
    const Member* const member = lease_of_.load(std::memory_order_acquire);
    return member == nullptr ? 0 : member->lease_ends_ms();
  };
  dependencies.on_owners_changed = [this] { broadcaster_.EndAll(); };
  dependencies.on_state = [this](ShardId) {
    if (storage_ != nullptr) storage_->CheckpointSoon();
  };
  dependencies.on_disk = [this](ShardId shard) {
    return storage_ == nullptr || storage_->checkpointer().HoldsStateOf(shard);
  };
  dependencies.credentials = security_->credentials();
  dependencies.access = security_->access();
  if (storage_ != nullptr) {
    dependencies.updates = [this] { return storage_->updates(); };
    storage_->checkpointer().SetListener([this] { replication_->ConfirmOnDisk(); });
    storage_->checkpointer().KeepMarks(
        [this](ShardId shard, Version version) { return replication_->MarkAt(shard, version); });
  }
  replication_ = std::make_unique<Replication>(config_, std::move(dependencies), &store_);
}

std::shared_ptr<Member> ServerProcess::MemberNow() const {
  MutexLock lock(&mu_);
  return member_;
}

absl::Status ServerProcess::Listen() {
  const v1::ServerConfig& config = config_.server();
  LODESTONE_RETURN_IF_ERROR(CheckCanBind(config.listen()));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  int port = 0;
  const std::shared_ptr<grpc::ServerCredentials> credentials = security_->port();
  builder.AddListeningPort(config.listen(), credentials, &port);
  // With TLS there is none: nothing vouches for the process that listens at a socket.
  if (config_.cluster().local_sockets() && !security_->serves_by_tls()) {
    local_socket_ = ListenLocally(&builder, credentials);
  }
  ApplyServerSettings(&builder, config.message_max_bytes());
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::CQ_TIMEOUT_MSEC, kSyncPollMs);
  builder.SetResourceQuota(grpc::ResourceQuota("ps").SetMaxThreads(kSyncThreadsMax));
  builder.RegisterService(&parameters_);
  builder.RegisterService(&admin_);
  if (replication_ != nullptr) builder.RegisterService(replication_->service());
  coordinator_.Register(&builder);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", config.listen(), ": gRPC could not bind it"));
  }
  coordinator_.Listen();
  {
    MutexLock lock(&mu_);
    identity_.address = AdvertisedAddress(config.listen(), config.advertise(), port);
  }
  SetServing(false);
  LODESTONE_LOG(INFO, "server", "listens on={} port={} address={}", config.listen(), port, identity_.address);
  return absl::OkStatus();
}

absl::Status ServerProcess::StartHttp() {
  const std::string& listen = config_.server().http_listen();
  if (listen.empty()) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(
      http_, HttpServer::Start(listen, status_->HttpPaths([this] { return Readiness(); }), security_->http()));
  const std::string http = HttpAddress(listen, identity_.address, http_->port());
  LODESTONE_LOG(INFO, "server", "answers HTTP on={} port={} address={}", listen, http_->port(), http);
  MutexLock lock(&mu_);
  identity_.http = http;
  return absl::OkStatus();
}

absl::Status ServerProcess::Readiness() const {
  MutexLock lock(&mu_);
  if (stopping_) return absl::UnavailableError("this ps ends");
  return serving_ && synced_ ? absl::OkStatus() : absl::UnavailableError("");
}

std::unique_ptr<CoordinatorChannel> ServerProcess::ConnectCoordinator() {
  v1::Config config = config_;
  if (coordinator_.always()) config.mutable_coordinator()->set_address(identity_.address);
  return std::make_unique<CoordinatorChannel>(config, [this](const std::string& address) {
    const uint32_t message_max_bytes = config_.server().message_max_bytes();
    const bool own = coordinator_.may_serve() && address == identity_.address;
    return own ? security_->OwnChannel(server_.get(), ChannelSettings(message_max_bytes))
               : MakeChannel(address, message_max_bytes, security_->credentials());
  });
}

void ServerProcess::StartMember() {
  Member::Options options;
  options.index = identity_.index;
  options.address = identity_.address;
  options.local_socket = local_socket_;
  options.cluster = config_.cluster().name();
  options.shards = config_.cluster().shards();
  options.lease_ms = config_.coordinator().lease_ms();
  options.join_timeout_ms = config_.coordinator().join_timeout_ms();
  options.replicas = config_.cluster().replicas();
  options.on_heartbeat = [this](const v1::HeartbeatResponse& response) { OnHeartbeat(response); };
  options.on_change = [this](const ShardMap& map) { OnMap(map); };
  if (replication_ != nullptr) options.copies = [this] { return replication_->Copies(); };
  options.progress = [this] { return status_->Progress(); };
  options.events = &events_;
  options.data.emplace();  // Nothing.
  options.on_workers_ended = [this](std::span<const Incarnation> workers) { store_.EndSessions(workers); };
  if (storage_ != nullptr) {
    options.data = storage_->dir().data();
    options.token = storage_->dir().token();
    options.predecessor = storage_->dir().former_token();
  }
  // Under the lock: the map may come at once, and what it wakes asks for the member.
  MutexLock lock(&mu_);
  auto member = std::make_shared<Member>(std::move(options), ConnectCoordinator(),
                                         [this](absl::StatusOr<ShardMap> map) { OnRoute(std::move(map)); });
  lease_of_.store(member.get(), std::memory_order_release);
  member_ = std::move(member);
}

void ServerProcess::OnRoute(absl::StatusOr<ShardMap> map) {
  if (!map.ok()) return SetReady(map.status());
  // On a thread of its own, because the member's has the lease to renew.
  begin_ = std::thread([this, map = *std::move(map)] {
    const absl::StatusOr<ShardMap> own = AwaitNothingLost(map);
    SetReady(own.ok() ? Begin(*own) : own.status());
  });
}

void ServerProcess::OnMap(const ShardMap& map) {
  if (replication_ != nullptr) replication_->SetMap(map);
  MutexLock lock(&mu_);
  newest_map_ = map;
  changed_.NotifyAll();
}

absl::StatusOr<ShardMap> ServerProcess::AwaitNothingLost(ShardMap map) {
  size_t known = 0;
  for (;;) {
    const size_t lost = map.LostBy(identity_.index).size();
    if (lost == 0) break;
    if (lost != known) {
      known = lost;
      const std::string why = absl::StrCat(
          name_, " was restarted without the data of ", lost, " of ", map.shards(),
          " shards (another server.data_dir, or none), and serves nothing until an operator decides: start it "
          "with its former folder, or `psctl promote` a ps that holds a copy, or `psctl accept-loss ",
          identity_.index, "`; `psctl status` of the coordinator's ps says which");
      LODESTONE_LOG(ERROR, "server", "{}", why);
      store_.gate().SetReason(why);
      MutexLock lock(&mu_);
      if (lost_.empty()) lost_since_ms_ = time_.NowMs();
      lost_ = why;
    }
    MutexLock lock(&mu_);
    while (!stopping_ && (!newest_map_.has_value() || newest_map_->epoch() <= map.epoch())) changed_.Wait(&mu_);
    if (stopping_) return absl::CancelledError("the ps shuts down");
    map = *newest_map_;
  }
  store_.gate().SetReason("");
  MutexLock lock(&mu_);
  lost_.clear();
  return map;
}

absl::Status ServerProcess::Begin(const ShardMap& map) {
  const std::vector<ShardId> shards = map.ShardsOf(identity_.index);
  std::vector<uint64_t> terms(map.shards());
  for (ShardId shard = 0; shard < map.shards(); ++shard) terms[shard] = map.TermOf(shard);
  store_.shards().SetTerms(terms);
  if (replication_ != nullptr) replication_->Prepare(map);
  if (storage_ != nullptr) {
    std::vector<ShardId> copies;
    if (replication_ != nullptr) copies = replication_->CopiesToBringBack(map, storage_->dir().has_log());
    LODESTONE_RETURN_IF_ERROR(storage_->Recover(&store_, shards, copies));
  } else {
    store_.OwnShards(shards);
  }
  if (replication_ != nullptr) replication_->Begin();
  {
    MutexLock lock(&mu_);
    synced_ = replication_ == nullptr;
    began_ms_ = time_.NowMs();
  }
  SetServing(true);
  if (replication_ != nullptr) MemberNow()->AskHeartbeat();
  LODESTONE_LOG(INFO, "server", "serves shards={} of={} epoch={}", shards.size(), map.shards(), map.epoch());
  return absl::OkStatus();
}

void ServerProcess::SetReady(absl::Status status) {
  {
    MutexLock lock(&mu_);
    ready_ = status;
    changed_.NotifyAll();
  }
  if (on_ready_) on_ready_(std::move(status));
}

void ServerProcess::SetServing(bool serving) {
  {
    MutexLock lock(&mu_);
    serving_ = serving;
  }
  TellHealth();
}

void ServerProcess::TellHealth() {
  MutexLock in_turn(&health_mu_);
  bool ready = false, serving = false;
  {
    MutexLock lock(&mu_);
    serving = serving_;
    ready = serving_ && synced_;
  }
  grpc::HealthCheckServiceInterface* const health = server_->GetHealthCheckService();
  health->SetServingStatus("", ready);
  health->SetServingStatus(kParameterServerName, serving);
  health->SetServingStatus(kAdminName, true);  // Answers from the start.
}

void ServerProcess::OnHeartbeat(const v1::HeartbeatResponse& response) {
  if (replication_ != nullptr && response.all_in_sync()) replication_->FreeOthers();
  {
    MutexLock lock(&mu_);
    // The answer is to a heartbeat after the map that this ps began with: it counts the shards of that.
    if (!serving_ || synced_ || stopping_) return;
    to_sync_ = response.shards_to_sync();
    if (to_sync_ > 0) return;
    synced_ = true;
  }
  LODESTONE_LOG(INFO, "server", "is ready: all that it owns and follows has two copies, as far as there are servers");
  TellHealth();
}

absl::Status ServerProcess::WaitUntilReady() {
  MutexLock lock(&mu_);
  while (!ready_.has_value() && !stopping_) changed_.Wait(&mu_);
  return ready_.has_value() ? *ready_ : absl::CancelledError("the ps shuts down");
}

void ServerProcess::OnCoordinator(bool serves) {
  server_->GetHealthCheckService()->SetServingStatus(kCoordinatorName, serves);
  if (coordinator_.always()) return;
  AddEvent("elected", serves ? "serves the coordinator from now on" : "does not serve the coordinator any more");
}

absl::Status ServerProcess::CheckPlace() const {
  const Member* const member = lease_of_.load(std::memory_order_acquire);
  if (member == nullptr || !member->displaced()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("another process is ", name_, " now; this one, at ", identity_.address,
                                         ", lacks what that one got, and serves nothing any more: end it"));
}

void ServerProcess::RunTicks() {
  auto next = std::chrono::steady_clock::now() + kTickPeriod;
  MutexLock lock(&mu_);
  while (!stopping_) {
    if (changed_.WaitUntil(&mu_, next)) continue;
    mu_.Unlock();
    store_.Tick();
    refused_.Tick();
    CheckDisk();
    mu_.Lock();
    next = std::chrono::steady_clock::now() + kTickPeriod;
  }
}

void ServerProcess::CheckDisk() {
  if (storage_ == nullptr) return;
  const absl::Status health = storage_->health();
  const bool well = !absl::IsUnavailable(health);  // That too much waits for the log passes by itself.
  if (well != disk_failing_) return;
  disk_failing_ = !well;
  SetServing(well);
  if (well) {
    AddEvent("disk", "pushes can be made durable again, and are taken");
    LODESTONE_LOG(INFO, "server", "pushes can be made durable again, and are taken");
  } else {
    AddEvent("disk", absl::StrCat("pushes cannot be made durable, and are refused: ", health.message()));
    LODESTONE_LOG(ERROR, "server", "pushes cannot be made durable, and are refused: {}", health.ToString());
  }
}

void ServerProcess::Shutdown(int64_t grace_ms) {
  std::shared_ptr<Member> member;
  bool was_ready = false;
  {
    MutexLock lock(&mu_);
    if (stopping_) return;
    stopping_ = true;
    member = member_;
    was_ready = ready_.has_value();
    changed_.NotifyAll();
  }
  if (server_ != nullptr) server_->GetHealthCheckService()->Shutdown();
  if (storage_ != nullptr && !was_ready) storage_->Stop();
  if (storage_ != nullptr) storage_->StopRollback();
  if (member != nullptr) member->Leave();
  if (replication_ != nullptr) replication_->Shutdown();
  coordinator_.Shutdown();
  broadcaster_.Shutdown();
  exchange_.Drain();
  if (server_ != nullptr) {
    const auto deadline = std::chrono::system_clock::now() + std::chrono::milliseconds(grace_ms);
    parameters_.Drain(grace_ms);
    server_->Shutdown(deadline);
    coordinator_.StopListening();
    LODESTONE_LOG(INFO, "server", "has shut down address={}", identity_.address);
  }
  if (ticks_.joinable()) ticks_.join();
  if (begin_.joinable()) begin_.join();
  store_.shards().executors().Drain();  // Sweeps may be left, which know what is gone before the store is.
  if (storage_ != nullptr) storage_->Close();
  if (http_ != nullptr) http_->Stop();
}

}  // namespace lodestone::server
