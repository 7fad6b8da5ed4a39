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
#include "common/rpc/channel.h"
#include "common/rpc/coordinator_channel.h"
#include "common/telemetry/log.h"
#include "common/wire/ps_name.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"
#include "server/listen.h"
#include "server/machine_memory.h"
#include "server/process_impl.h"

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
  options.executors =
      config.server().executors() > 0 ? config.server().executors() : std::max(1u, std::thread::hardware_concurrency());
  options.memory_max_bytes = config.server().memory_max_bytes();
  if (options.memory_max_bytes == 0) {
    // Nine tenths of what there is: a table beyond it is refused, not the process killed.
    options.memory_max_bytes = MachineMemoryBytes() / 10 * 9;
  }
  options.time = time;
  return options;
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

// What becomes of memory that workers of this machine offer; null: it is refused.
std::function<SharedUse()> SharedUseOf(const v1::Config& config, Security* security, const Store* store) {
  // Nothing vouches for who has made it but the call.
  const bool asks = security->access() != nullptr || security->serves_by_tls();
  if (!config.cluster().shared_memory() || asks) return nullptr;
  return [store] { return store->log().ReadsAfterAnswers() ? SharedUse::kCopied : SharedUse::kRead; };
}

}  // namespace

ServerProcess::Impl::Impl(const v1::Config& config, std::function<void(absl::Status)> on_ready,
                          std::unique_ptr<Security> security)
    : config_(config),
      name_(absl::StrCat("ps ", config.server().index())),
      on_ready_(std::move(on_ready)),
      security_(std::move(security)),
      events_(&time_),
      refused_(name_, &time_, &events_),
      store_(StoreOptions(config, &time_)),
      broadcaster_(&store_, config.server().subscribers_max()),
      coordinator_(config, &time_, [this](bool serves) { OnCoordinator(serves); }),
      exchange_(&store_, &broadcaster_, identity_.incarnation = DrawNonce(),
                PsName(config.server().index(), config.cluster().name()), security_->access(),
                SharedUseOf(config, security_.get(), &store_)),
      parameters_(&store_, &broadcaster_, &exchange_, identity_.incarnation, security_->access()),
      admin_(
          {[this](v1::StatusResponse* status) { FillStatus(status); }},
          Storage::IsWanted(config)
              ? AdminService::Checkpointer([this](const std::string& name) { return storage_->Checkpoint(name); })
              : nullptr,
          Storage::IsWanted(config)
              ? AdminService::Rollbacker([this](const auto& request) { return storage_->Rollback(request); })
              : nullptr,
          Replication::IsWanted(config) ? AdminService::Verifier([this] { return replication_->Verify(); }) : nullptr,
          [this](uint64_t after_id) { return Events(after_id); }, [this] { return History(); }) {
  store_.pushes().SetRefusalListener(
      [this](Incarnation worker, const absl::Status& why) { refused_.Note(worker, why); });
  security_->Know(
      {[this](TableId table) { return store_.tables().NameOf(table); }, [this] { return store_.tables().totals(); }});
  admin_.SetAudit(security_->audit(), security_->access());
  identity_.index = config.server().index();
  identity_.started = std::chrono::steady_clock::now();
}

absl::Status ServerProcess::Impl::Start() {
  LODESTONE_ASSIGN_OR_RETURN(storage_, Storage::Open(config_, &time_));
  if (storage_ != nullptr) storage_->SetEvents(&events_);
  if (Replication::IsWanted(config_)) StartReplication();
  LODESTONE_RETURN_IF_ERROR(coordinator_.Prepare(storage_.get()));
  LODESTONE_RETURN_IF_ERROR(Listen());
  LODESTONE_RETURN_IF_ERROR(StartHttp());
  coordinator_.Start(identity_.address);
  StartMember();
  ticks_ = std::thread([this] { RunTicks(); });
  return absl::OkStatus();
}

void ServerProcess::Impl::StartReplication() {
  Replication::Surroundings surroundings;
  // Before there is a member this ps owns and follows nothing, and has nothing to ask.
  surroundings.report = [this](const v1::ReportSyncRequest& request) { return MemberNow()->ReportSync(request); };
  surroundings.ask_route = [this] { MemberNow()->AskRoute(); };
  surroundings.incarnation = [this] { return MemberNow()->incarnation(); };
  surroundings.lease_ends_ms = [this] {
    const Member* const member = lease_of_.load(std::memory_order_acquire);
    return member == nullptr ? 0 : member->lease_ends_ms();
  };
  surroundings.on_owners_changed = [this] { broadcaster_.EndAll(); };
  surroundings.on_state = [this](ShardId) {
    if (storage_ != nullptr) storage_->CheckpointSoon();
  };
  surroundings.on_disk = [this](ShardId shard) { return storage_ == nullptr || storage_->HoldsStateOf(shard); };
  surroundings.credentials = security_->credentials();
  surroundings.access = security_->access();
  if (storage_ != nullptr) {
    storage_->SetCheckpointListener([this] { replication_->ConfirmOnDisk(); });
  }
  replication_.emplace(config_, std::move(surroundings), &store_);
}

std::shared_ptr<Member> ServerProcess::Impl::MemberNow() const {
  MutexLock lock(&mu_);
  return member_;
}

absl::Status ServerProcess::Impl::Listen() {
  const v1::ServerConfig& config = config_.server();
  LODESTONE_RETURN_IF_ERROR(CheckCanBind(config.listen()));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  int port = 0;
  const std::shared_ptr<grpc::ServerCredentials> credentials = security_->port();
  builder.AddListeningPort(config.listen(), credentials, &port);
  // With TLS there is none: nothing vouches for who listens at a socket.
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
  if (replication_.has_value()) builder.RegisterService(replication_->service());
  grpc::Service* const coordinator = coordinator_.service(security_->access());
  if (coordinator != nullptr) builder.RegisterService(coordinator);
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", config.listen(), ": gRPC could not bind it"));
  }
  {
    MutexLock lock(&mu_);
    identity_.address = AdvertisedAddress(config.listen(), config.advertise(), port);
  }
  SetServing(false);
  LODESTONE_LOG(INFO, "server", "listens on={} port={} address={}", config.listen(), port, identity_.address);
  return absl::OkStatus();
}

std::unique_ptr<CoordinatorChannel> ServerProcess::Impl::ConnectCoordinator() {
  v1::Config config = config_;
  if (coordinator_.always()) config.mutable_coordinator()->set_address(identity_.address);
  return std::make_unique<CoordinatorChannel>(config, [this](const std::string& address) {
    const uint32_t message_max_bytes = config_.server().message_max_bytes();
    const bool own = coordinator_.service() != nullptr && address == identity_.address;
    return own ? security_->OwnChannel(server_.get(), ChannelSettings(message_max_bytes))
               : MakeChannel(address, message_max_bytes, security_->credentials());
  });
}

void ServerProcess::Impl::StartMember() {
  Member::Options options;
  options.index = identity_.index;
  options.address = identity_.address;
  options.local_socket = local_socket_;
  options.cluster = config_.cluster().name();
  options.shards = config_.cluster().shards();
  options.lease_ms = config_.coordinator().lease_ms();
  options.join_timeout_ms = config_.coordinator().join_timeout_ms();
  options.replicas = config_.cluster().replicas();
  if (replication_.has_value()) {
    options.on_change = [this](const ShardMap& map) { replication_->SetMap(map); };
  }
  options.progress = [this] { return Progress(); };
  options.events = &events_;
  if (storage_ != nullptr) {
    options.token = storage_->token();
    options.predecessor = storage_->former_token();
  }
  // Under the lock: the map may come at once, and whoever it wakes asks for the member.
  MutexLock lock(&mu_);
  auto member = std::make_shared<Member>(std::move(options), ConnectCoordinator(),
                                         [this](absl::StatusOr<ShardMap> map) { OnRoute(std::move(map)); });
  lease_of_.store(member.get(), std::memory_order_release);
  member_ = std::move(member);
}

void ServerProcess::Impl::OnRoute(absl::StatusOr<ShardMap> map) {
  if (!map.ok()) return SetReady(map.status());
  // On a thread of its own, because the member's has the lease to renew.
  begin_ = std::thread([this, map = *std::move(map)] { SetReady(Begin(map)); });
}

absl::Status ServerProcess::Impl::Begin(const ShardMap& map) {
  const std::vector<ShardId> shards = map.ShardsOf(identity_.index);
  std::vector<uint64_t> terms(map.shards());
  for (ShardId shard = 0; shard < map.shards(); ++shard) terms[shard] = map.TermOf(shard);
  store_.shards().SetTerms(terms);
  if (replication_.has_value()) replication_->Prepare(map);
  if (storage_ != nullptr) {
    LODESTONE_RETURN_IF_ERROR(storage_->Recover(&store_, shards));
  } else {
    store_.OwnShards(shards);
  }
  if (replication_.has_value()) replication_->Begin();
  SetServing(true);
  LODESTONE_LOG(INFO, "server", "serves shards={} of={} epoch={}", shards.size(), map.shards(), map.epoch());
  return absl::OkStatus();
}

void ServerProcess::Impl::SetReady(absl::Status status) {
  {
    MutexLock lock(&mu_);
    ready_ = status;
    changed_.NotifyAll();
  }
  if (on_ready_) on_ready_(std::move(status));
}

void ServerProcess::Impl::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface* const health = server_->GetHealthCheckService();
  health->SetServingStatus("", serving);
  health->SetServingStatus(kParameterServerName, serving);
  health->SetServingStatus(kAdminName, true);  // Answers from the start.
  MutexLock lock(&mu_);
  serving_ = serving;
}

absl::Status ServerProcess::Impl::WaitUntilReady() {
  MutexLock lock(&mu_);
  while (!ready_.has_value() && !stopping_) changed_.Wait(&mu_);
  return ready_.has_value() ? *ready_ : absl::CancelledError("the ps shuts down");
}

void ServerProcess::Impl::OnCoordinator(bool serves) {
  server_->GetHealthCheckService()->SetServingStatus(kCoordinatorName, serves);
  if (coordinator_.always()) return;
  Tell("elected", serves ? "serves the coordinator from now on" : "does not serve the coordinator any more");
}

void ServerProcess::Impl::RunTicks() {
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

void ServerProcess::Impl::CheckDisk() {
  if (storage_ == nullptr) return;
  const absl::Status health = storage_->health();
  const bool well = !absl::IsUnavailable(health);  // That too much waits for the log passes by itself.
  if (well != disk_told_) return;
  disk_told_ = !well;
  SetServing(well);
  if (well) {
    Tell("disk", "pushes can be made durable again, and are taken");
    LODESTONE_LOG(INFO, "server", "pushes can be made durable again, and are taken");
  } else {
    Tell("disk", absl::StrCat("pushes cannot be made durable, and are refused: ", health.message()));
    LODESTONE_LOG(ERROR, "server", "pushes cannot be made durable, and are refused: {}", health.ToString());
  }
}

void ServerProcess::Impl::Shutdown(int64_t grace_ms) {
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
  if (replication_.has_value()) replication_->Shutdown();
  coordinator_.Shutdown();
  broadcaster_.Shutdown();
  exchange_.Drain();
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(grace_ms));
    LODESTONE_LOG(INFO, "server", "has shut down address={}", identity_.address);
  }
  if (ticks_.joinable()) ticks_.join();
  if (begin_.joinable()) begin_.join();
  store_.shards().executors().Drain();  // Sweeps may be left, which know what is gone before the store is.
  if (storage_ != nullptr) storage_->Close();
  if (http_ != nullptr) http_->Stop();
}

ServerProcess::ServerProcess(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ServerProcess::~ServerProcess() = default;

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(const v1::Config& config,
                                                                    std::function<void(absl::Status)> on_ready) {
  LODESTONE_RETURN_IF_ERROR(CheckConfig(config));
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<Security> security, Security::Open(config));
  auto impl = std::make_unique<Impl>(config, std::move(on_ready), std::move(security));
  LODESTONE_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<ServerProcess>(new ServerProcess(std::move(impl)));
}

const std::string& ServerProcess::address() const { return impl_->address(); }
absl::Status ServerProcess::WaitUntilReady() { return impl_->WaitUntilReady(); }
void ServerProcess::Shutdown(int64_t grace_ms) { impl_->Shutdown(grace_ms); }

}  // namespace lodestone::server
