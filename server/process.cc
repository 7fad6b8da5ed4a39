#include "server/process.h"

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/nonce.h"
#include "common/base/status.h"
#include "common/http/monitoring.h"
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
#include "server/process_options.h"
#include "server/replication/logged_positions.h"
#include "server/replication/replication.h"

namespace lodestone::server {
namespace {

constexpr std::chrono::milliseconds kTickPeriod{1000};
constexpr int kSyncThreadsMax = 8;   // Only reflection uses gRPC's synchronous threads.
constexpr int kSyncPollMs = 60'000;  // An idle one wakes this often.

}  // namespace

ServerProcess::ServerProcess(const v1::Config& config, std::function<void(absl::Status)> on_ready,
                             std::unique_ptr<Security> security)
    : config_(config),
      name_(absl::StrCat("ps ", config.server().index())),
      on_ready_(std::move(on_ready)),
      security_(std::move(security)),
      events_(&time_),
      readiness_(name_, &time_),
      refused_(name_, &time_, &events_),
      store_(StoreOptions(config, &time_)),
      lost_shards_(config.server().index(), &time_, &store_.gate()),
      call_memory_(CallMemoryBytes(config, [this] { return store_.tables().totals().second; }), &time_),
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
  handlers.move = [this](const v1::MoveRequest& request, auto done) { coordinator_.Move(request, std::move(done)); };
  handlers.drain = [this](const v1::DrainRequest& request, auto done) { coordinator_.Drain(request, std::move(done)); };
  handlers.pause_training = [this](const v1::PauseTrainingRequest& request, auto done) {
    coordinator_.PauseTraining(request, std::move(done));
  };
  handlers.set_table = [this](const v1::SetTableRequest& request, auto done) {
    store_.SetTable(request, std::move(done));
  };
  handlers.check_checkpoint_name = [](const std::string& name) { return CheckCheckpointName(name); };
  if (Storage::IsWanted(config_)) {
    handlers.checkpoint = [this](const std::string& name) { return storage_->Checkpoint(name); };
    handlers.remove_checkpoint = [this](const std::string& name) { return storage_->RemoveCheckpoint(name); };
    handlers.roll_back = [this](const v1::RollbackRequest& request) { return storage_->Rollback(request); };
  }
  if (config_.cluster().replicas() > 1) handlers.verify_replicas = [this] { return replication_->Verify(); };
  handlers.events = [this](uint64_t after_id) { return status_->Events(after_id); };
  handlers.history = [this] { return status_->History(); };
  return handlers;
}

ServerProcess::~ServerProcess() { Shutdown(0); }

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(const v1::Config& config,
                                                                    std::function<void(absl::Status)> on_ready) {
  LODESTONE_RETURN_IF_ERROR(CheckProcessConfig(config));
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
    store_.deltas().memory()->large().FillStatus(name_, "broadcasts", status);
    readiness_.FillStatus(status);
    lost_shards_.FillStatus(status);
  };
  sources.message_max_bytes = config_.server().message_max_bytes();
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
    const CoordinatorClient* const member = lease_of_.load(std::memory_order_acquire);
    return member == nullptr ? 0 : member->lease_ends_ms();
  };
  dependencies.on_owners_changed = [this] { broadcaster_.EndAll(); };
  dependencies.on_state = [this](ShardId) {
    if (storage_ != nullptr) storage_->WriteArrivedSoon();
  };
  dependencies.on_disk = [this](ShardId shard) {
    // Without replicas and without a folder, an owner has no more on the disk than its last checkpoint.
    const bool need_not = storage_ == nullptr || (config_.cluster().replicas() == 1 && storage_->dir().path().empty());
    return need_not || storage_->checkpointer().HoldsStateOf(shard);
  };
  if (storage_ != nullptr) dependencies.note_shared = [this] { return storage_->NoteShared(); };
  dependencies.check_place = [this] { return CheckPlace(); };
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

std::shared_ptr<CoordinatorClient> ServerProcess::MemberNow() const {
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
  readiness_.Tell(server_->GetHealthCheckService());
  LODESTONE_LOG(INFO, "server", "listens on={} port={} address={}", config.listen(), port, identity_.address);
  return absl::OkStatus();
}

absl::Status ServerProcess::StartHttp() {
  const std::string& listen = config_.server().http_listen();
  if (listen.empty()) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(
      http_, HttpServer::Start(listen, status_->HttpPaths([this] { return readiness_.Check(); }), security_->http()));
  const std::string http = HttpAddress(listen, identity_.address, http_->port());
  LODESTONE_LOG(INFO, "server", "answers HTTP on={} port={} address={}", listen, http_->port(), http);
  MutexLock lock(&mu_);
  identity_.http = http;
  return absl::OkStatus();
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
  CoordinatorClient::Options options;
  options.index = identity_.index;
  options.address = identity_.address;
  options.local_socket = local_socket_;
  options.zone = config_.server().zone();
  options.cluster = config_.cluster().name();
  options.shards = config_.cluster().shards();
  options.servers = config_.cluster().servers();
  options.lease_ms = config_.coordinator().lease_ms();
  options.join_timeout_ms = config_.coordinator().join_timeout_ms();
  options.replicas = config_.cluster().replicas();
  options.on_joined = [this](const v1::JoinResponse& response) {
    store_.NoteGiven(response.incarnation());
    store_.NoteOrders(response.orders());
  };
  options.on_heartbeat = [this](const v1::HeartbeatResponse& response) { OnHeartbeat(response); };
  options.on_change = [this](const ShardMap& map) { OnMap(map); };
  if (replication_ != nullptr) options.copies = [this] { return replication_->Copies(); };
  options.progress = [this] { return status_->Progress(); };
  options.events = &events_;
  options.data.emplace();  // Nothing.
  options.on_workers_ended = [this](std::span<const Incarnation> workers) { store_.EndSessions(workers); };
  options.on_ranges_open = [this](std::span<const Incarnation> ranges) { store_.KeepSessions(ranges); };
  if (storage_ != nullptr) {
    options.data = storage_->dir().data();
    options.shared = [this] { return storage_->shared(); };
    options.generation = [this] { return storage_->generation(); };
    options.token = storage_->dir().token();
    options.predecessor = storage_->dir().former_token();
  }
  // Under the lock: the map may come at once, and what it wakes asks for the member.
  MutexLock lock(&mu_);
  auto member = std::make_shared<CoordinatorClient>(std::move(options), ConnectCoordinator(),
                                                    [this](absl::StatusOr<ShardMap> map) { OnRoute(std::move(map)); });
  lease_of_.store(member.get(), std::memory_order_release);
  member_ = std::move(member);
}

void ServerProcess::OnRoute(absl::StatusOr<ShardMap> map) {
  if (!map.ok()) return SetReady(map.status());
  coordinator_.SetMap(*map);
  // On a thread of its own, because the member's has the lease to renew.
  begin_ = std::thread([this, map = *std::move(map)] {
    const absl::StatusOr<ShardMap> own = lost_shards_.Await(map, storage_ != nullptr && storage_->dir().cut_short());
    SetReady(own.ok() ? Begin(*own) : own.status());
  });
}

void ServerProcess::OnMap(const ShardMap& map) {
  for (uint32_t server = 0; server < map.servers(); ++server) store_.NoteGiven(map.IncarnationOf(server));
  if (replication_ != nullptr) replication_->SetMap(map);
  coordinator_.SetMap(map);
  lost_shards_.SetMap(map);
}

absl::Status ServerProcess::Begin(const ShardMap& map) {
  const std::vector<ShardId> shards = map.ShardsOf(identity_.index);
  std::vector<uint64_t> terms(map.shards());
  for (ShardId shard = 0; shard < map.shards(); ++shard) terms[shard] = map.TermOf(shard);
  store_.shards().SetTerms(terms);
  if (replication_ != nullptr) replication_->Prepare(map);
  if (storage_ != nullptr) {
    std::vector<ShardId> copies;
    // Without replicas, of shards that were about to move here.
    const bool shared = config_.cluster().replicas() > 1 || storage_->dir().has_followed();
    if (replication_ != nullptr && shared && !storage_->dir().goes_back())
      copies = replication_->CopiesToBringBack(map, storage_->dir().has_log());
    LODESTONE_RETURN_IF_ERROR(storage_->Recover(&store_, shards, copies));
  } else {
    store_.OwnShards(shards);
  }
  if (replication_ != nullptr) replication_->Begin();
  readiness_.Begin(/*wants_copies=*/config_.cluster().replicas() > 1);
  MemberNow()->AskHeartbeat();  // It tells that this life has begun.
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

void ServerProcess::OnHeartbeat(const v1::HeartbeatResponse& response) {
  if (replication_ != nullptr && response.all_in_sync()) replication_->FreeOthers();
  readiness_.NoteToSync(response.shards_to_sync());
}

absl::Status ServerProcess::WaitUntilReady() {
  MutexLock lock(&mu_);
  while (!ready_.has_value() && !stopping_) changed_.Wait(&mu_);
  return ready_.has_value() ? *ready_ : absl::CancelledError("the ps shuts down");
}

void ServerProcess::OnCoordinator(bool serves) {
  readiness_.SetCoordinator(serves);
  if (coordinator_.always()) return;
  AddEvent("elected", serves ? "serves the coordinator from now on" : "does not serve the coordinator any more");
}

absl::Status ServerProcess::CheckPlace() const {
  const CoordinatorClient* const member = lease_of_.load(std::memory_order_acquire);
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
    exchange_.Tick();
    broadcaster_.Tick();
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
  readiness_.SetWell(well);
  if (well) {
    AddEvent("disk", "pushes can be made durable again, and are taken");
    LODESTONE_LOG(INFO, "server", "pushes can be made durable again, and are taken");
  } else {
    AddEvent("disk", absl::StrCat("pushes cannot be made durable, and are refused: ", health.message()));
    LODESTONE_LOG(ERROR, "server", "pushes cannot be made durable, and are refused: {}", health.ToString());
  }
}

void ServerProcess::Shutdown(int64_t grace_ms) {
  std::shared_ptr<CoordinatorClient> member;
  bool was_ready = false;
  {
    MutexLock lock(&mu_);
    if (stopping_) return;
    stopping_ = true;
    member = member_;
    was_ready = ready_.has_value();
    changed_.NotifyAll();
  }
  readiness_.Stop();
  lost_shards_.Stop();
  if (storage_ != nullptr && !was_ready) storage_->Stop();
  if (storage_ != nullptr) storage_->StopRollback();
  if (member != nullptr) member->Leave();
  if (replication_ != nullptr) replication_->Shutdown();
  coordinator_.Shutdown();
  broadcaster_.Shutdown();
  store_.StopWaits();
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
  store_.StopSweeps();
  store_.EndSlowWork();
  // What is left knows what is gone before the store is: sweeps, and unary calls that have been answered while a slow
  // log held them. The pull of a PushPull begins when its log lets go of the push, and may wait for a log once more.
  for (int round = 0; round < 2; ++round) {
    store_.shards().executors().Drain();
    AwaitLogs(&store_).IgnoreError();
  }
  if (storage_ != nullptr) storage_->Close();
  if (http_ != nullptr) http_->Stop();
}

}  // namespace lodestone::server
