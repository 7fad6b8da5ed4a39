#include "worker/client/client.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/awaited.h"
#include "common/base/mutex.h"
#include "common/base/nonce.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/base/timer.h"
#include "common/io/machine_limits.h"
#include "common/rpc/channel.h"
#include "common/rpc/local_socket.h"
#include "common/security/credentials.h"
#include "common/telemetry/log.h"
#include "common/wire/ps_name.h"
#include "common/wire/shared_memory.h"
#include "worker/client/checkpoint_writer.h"
#include "worker/client/puller.h"
#include "worker/client/push_pull.h"
#include "worker/client/pusher.h"
#include "worker/client/rerouter.h"
#include "worker/client/route_follower.h"
#include "worker/client/server_sessions.h"
#include "worker/client/server_set.h"
#include "worker/client/subscription.h"
#include "worker/client/table_creator.h"
#include "worker/client/worker_membership.h"
#include "worker/rpc/connection.h"
#include "worker/rpc/server_channel.h"

namespace lodestone::worker {
namespace {

// The age at which a call is reported by heartbeats as what the process waits for.
constexpr int64_t kWaitingTellMs = 1'000;

// Threads that connections are spread over, at most, and never more than half the cores: each moves some gigabytes per
// second, and what one of them receives for another has to change cores.
constexpr size_t kThreadsMax = 4;
constexpr char kNowhere[] = "127.0.0.1:0";

class ClientImpl final : public Client {
 public:
  // What it is in the cluster. Of an observer, which is no member, only ClusterReader's methods may be called.
  enum class Part { kWorker, kObserver };

  ClientImpl(const v1::Config& config, Part part, std::function<void(const v1::WorkerProgress&)> on_progress)
      : config_(config), part_(part), on_progress_(std::move(on_progress)) {
    const size_t threads = std::clamp<size_t>(MachineCores() / 2, 1, kThreadsMax);
    for (size_t i = 0; i < threads; ++i) threads_.push_back(std::make_unique<ConnectionThread>());
  }
  ~ClientImpl() override;

  absl::Status Connect();

  uint32_t index() const override { return membership_->index(); }
  Incarnation incarnation() const override { return observes() ? 0 : membership_->incarnation(); }
  std::shared_ptr<const ShardMap> shard_map() const override {
    return observes() ? routes_->shard_map() : membership_->shard_map();
  }
  absl::StatusOr<std::vector<TableHandle>> EnsureTables(const std::vector<v1::TableSpec>& specs) override {
    LODESTONE_RETURN_IF_ERROR(Health());
    return table_creator_->EnsureTables(specs);
  }
  absl::StatusOr<std::vector<v1::TableSpec>> DescribeTables(const std::vector<std::string>& names) override {
    LODESTONE_RETURN_IF_ERROR(Health());
    return table_creator_->DescribeTables(names);
  }
  absl::StatusOr<std::vector<std::vector<v1::TableSpec>>> DescribeByServer(
      const std::vector<std::string>& names) override {
    LODESTONE_RETURN_IF_ERROR(Health());
    return table_creator_->DescribeByServer(names);
  }
  absl::Status Push(const StepOrigin& step, std::span<const DenseGradient> dense, std::span<const RowGradients> rows,
                    const ReadVersions& read_versions, std::function<void(PushResult)> done) override;
  void Pull(std::vector<DensePull> dense, std::vector<RowPull> rows,
            std::function<void(absl::Status, ShardVersions)> done) override;
  void PullSteps(const StepRead& read, std::vector<DensePull> dense, std::vector<RowPull> rows,
                 std::function<void(absl::Status, ShardVersions, uint64_t)> done) override;
  absl::StatusOr<ShardVersions> PullNow(std::vector<DensePull> dense, std::vector<RowPull> rows) override;
  absl::Status PushPull(const StepOrigin& step, std::span<const DenseGradient> dense,
                        std::span<const RowGradients> rows, const ReadVersions& read_versions,
                        std::vector<DensePull> dense_pulls, std::vector<RowPull> row_pulls,
                        std::function<void(PushResult, ShardVersions)> done) override {
    LODESTONE_RETURN_IF_ERROR(Health());
    return push_pull_->Run(step, dense, rows, read_versions, std::move(dense_pulls), std::move(row_pulls),
                           std::move(done));
  }
  absl::StatusOr<SubscriptionId> Subscribe(std::vector<const TableHandle*> tables,
                                           SubscriptionListener listener) override;
  void Unsubscribe(SubscriptionId subscription) override;
  void UnsubscribeAll() override;
  absl::Status Flush() override { return pusher_->Flush(); }
  absl::Status FollowOrders(uint64_t orders) override {
    LODESTONE_RETURN_IF_ERROR(Health());
    return table_creator_->FollowOrders(orders);
  }
  void SetPushesInFlightMax(size_t pushes) override { pusher_->SetPushesInFlightMax(pushes); }
  uint64_t SettingsChanges() const override { return pusher_->SettingsChanges(); }
  void ReportProgress(const v1::WorkerProgress& progress) override {
    if (on_progress_) on_progress_(progress);
    membership_->ReportProgress(progress);
  }
  absl::StatusOr<std::vector<std::string>> AwaitClock(Clock clock, const std::function<bool()>& stops) override;
  absl::StatusOr<v1::AwaitClockResponse> AskClock(v1::AwaitClockRequest request) override {
    LODESTONE_RETURN_IF_ERROR(Health());
    return membership_->AskClock(std::move(request));
  }
  void ReportClock(Clock clock) override { membership_->ReportClock(clock); }
  absl::StatusOr<v1::ValidateResponse> Validate(v1::ValidateRequest request) override {
    LODESTONE_RETURN_IF_ERROR(Health());
    return membership_->Validate(std::move(request));
  }
  absl::StatusOr<v1::LeaseRangesResponse> LeaseRanges(v1::LeaseRangesRequest request) override {
    LODESTONE_RETURN_IF_ERROR(Health());
    return membership_->LeaseRanges(std::move(request));
  }
  RangeSession OpenRange(Incarnation range) override;
  bool StopsEarly() const override { return membership_->StopsEarly(); }
  bool PauseAnnounced() const override { return membership_->PauseAnnounced(); }
  absl::Status WriteCheckpoint(const std::string& name, const std::string& removes) override {
    LODESTONE_RETURN_IF_ERROR(Health());
    const auto newest_map = [this] {
      AskRoute();  // In case shards move meanwhile.
      return shard_map();
    };
    return WriteCheckpoints(newest_map, config_.server().message_max_bytes(), credentials_, name, removes);
  }
  absl::Status Health() const override;

 private:
  bool observes() const { return part_ == Part::kObserver; }
  // Joins, or observes.
  absl::Status FindServers();
  // Makes the channels to all servers, and all that uses them.
  void OpenChannels();
  void AskRoute() { observes() ? routes_->AskRoute() : membership_->AskRoute(); }
  static std::string PeerOf(const ShardMap& map, uint32_t server) {
    return absl::StrCat("ps ", server, " at ", map.AddressOf(server));
  }
  // A subscription's part at one ps.
  struct Subscribed {
    SubscriptionId id = 0;
    uint32_t server = 0;
    std::unique_ptr<Subscription> stream;
  };
  // The address of a ps by the shard map.
  struct Place {
    std::string address;
    std::string local_socket;
    bool operator==(const Place&) const = default;
  };
  static Place PlaceOf(const ShardMap& map, uint32_t server) {
    return {map.AddressOf(server), map.LocalSocketOf(server)};
  }
  // The target for gRPC: the socket of a ps on this machine, or the address. With TLS always the address, which the
  // certificate of the ps is for. Of a ps that has not come yet, which is asked nothing, one that nobody listens at.
  std::string TargetOf(const ShardMap& map, uint32_t server) const {
    const std::string& socket = map.LocalSocketOf(server);
    const bool wanted = config_.cluster().local_sockets() && (credentials_ == nullptr || !credentials_->calls_by_tls());
    if (wanted && IsListeningHere(socket)) return LocalSocketTarget(socket);
    return map.AddressOf(server).empty() ? kNowhere : map.AddressOf(server);
  }
  std::unique_ptr<Connection> MakeConnection(const ShardMap& map, uint32_t server, int64_t call_timeout_ms,
                                             size_t shared_bytes = 0);
  // For a channel.
  std::vector<std::unique_ptr<Connection>> MakeConnections(const ShardMap& map, uint32_t server);
  // Redirects the channels of servers that have moved by `map`, and takes back calls in flight to those that do not own
  // their shards.
  void FollowRoute(const std::shared_ptr<const ShardMap>& map);
  uint64_t SeedOf(uint64_t purpose) const { return StreamSeed(seed_, purpose); }
  // The queues take turns, so that connections spread over the threads.
  grpc::CompletionQueue* NextQueue() { return threads_[next_thread_++ % threads_.size()]->queue(); }
  void Lose(const absl::Status& status);
  // Those that have lasted for more than kWaitingTellMs, the longest first.
  std::vector<v1::WaitStatus> Waits() const;

  const v1::Config config_;
  const Part part_;
  const std::function<void(const v1::WorkerProgress&)> on_progress_;
  CredentialsRef credentials_;  // Constant after Connect.
  uint64_t seed_ = 0;           // The same. Of the pauses between attempts: another one in every process.
  Timer timer_;
  std::vector<std::unique_ptr<ConnectionThread>> threads_;  // Constant after construction.
  std::atomic<size_t> next_thread_{0};

  mutable Mutex mu_;
  absl::Status health_ ABSL_GUARDED_BY(mu_);

  // Held while connections are made and turned elsewhere. No callback takes it.
  Mutex route_mu_;
  std::vector<Place> places_ ABSL_GUARDED_BY(route_mu_);  // By server: where channels and subscriptions connect to.
  std::vector<Incarnation> incarnations_ ABSL_GUARDED_BY(route_mu_);  // By server.
  std::vector<Subscribed> subscriptions_ ABSL_GUARDED_BY(route_mu_);
  SubscriptionId last_subscription_ ABSL_GUARDED_BY(route_mu_) = 0;
  bool closing_ ABSL_GUARDED_BY(route_mu_) = false;

  // Constant once connected_. Synchronise themselves.
  std::atomic<bool> connected_{false};
  std::vector<std::unique_ptr<ServerChannel>> channels_;  // By server.
  std::unique_ptr<Rerouter> rerouter_;
  std::unique_ptr<ServerSessions> sessions_;
  std::unique_ptr<TableCreator> table_creator_;
  std::unique_ptr<Pusher> pusher_;
  std::unique_ptr<Puller> puller_;
  std::unique_ptr<worker::PushPull> push_pull_;
  std::unique_ptr<WorkerMembership> membership_;  // Null of an observer.
  std::unique_ptr<RouteFollower> routes_;         // Null of a worker.
};

absl::Status ClientImpl::FindServers() {
  if (observes()) {
    LODESTONE_ASSIGN_OR_RETURN(routes_, RouteFollower::Start(
                                            config_, [this](const auto& map) { FollowRoute(map); }, credentials_));
    seed_ = DrawNonce();
    return absl::OkStatus();
  }
  LODESTONE_ASSIGN_OR_RETURN(membership_,
                             WorkerMembership::Join(config_,
                                                    {.on_lost = [this](const absl::Status& status) { Lose(status); },
                                                     .waits = [this] { return Waits(); },
                                                     .on_route = [this](const auto& map) { FollowRoute(map); }},
                                                    credentials_));
  seed_ = incarnation();
  return absl::OkStatus();
}

absl::Status ClientImpl::Connect() {
  LODESTONE_ASSIGN_OR_RETURN(credentials_, Credentials::Make(config_.security()));
  LODESTONE_RETURN_IF_ERROR(FindServers());
  OpenChannels();
  if (observes()) return Health();
  const std::shared_ptr<const ShardMap> map = shard_map();
  uint32_t local = 0;
  for (uint32_t server = 0; server < map->servers(); ++server) {
    const std::string& address = map->AddressOf(server);
    if (!address.empty() && TargetOf(*map, server) != address) ++local;
  }
  LODESTONE_LOG(INFO, "client", "connected index={} incarnation={} servers={} on_this_machine={} shards={}", index(),
                incarnation(), map->servers(), local, map->shards());
  return Health();
}

void ClientImpl::OpenChannels() {
  MutexLock lock(&route_mu_);
  const std::shared_ptr<const ShardMap> map = shard_map();
  const RetryPolicy policy{config_.worker().call_timeout_ms(), config_.worker().retry_timeout_ms()};
  for (uint32_t server = 0; server < map->servers(); ++server) {
    places_.push_back(PlaceOf(*map, server));
    incarnations_.push_back(map->IncarnationOf(server));
    channels_.push_back(std::make_unique<ServerChannel>(
        PeerOf(*map, server), MakeConnections(*map, server),
        ServerChannel::Options{
            .server = server, .policy = policy, .timer = &timer_, .seed = SeedOf(2 * server), .on_unreachable = [this] {
              AskRoute();
            }}));
  }
  rerouter_ = std::make_unique<Rerouter>(Rerouter::Options{.map = [this] { return shard_map(); },
                                                           .ask_route = [this] { AskRoute(); },
                                                           .timer = &timer_,
                                                           .retry_timeout_ms = policy.retry_timeout_ms,
                                                           .seed = SeedOf(2 * map->servers())});
  sessions_ = std::make_unique<ServerSessions>(incarnation(), channels_);
  const ServerSet servers{.map = [this] { return shard_map(); },
                          .channels = channels_,
                          .incarnation = incarnation(),
                          .limits = {.bytes_max = config_.server().message_max_bytes()},
                          .timer = &timer_,
                          .rerouter = rerouter_.get(),
                          .sessions = sessions_.get(),
                          .on_lost = [this](const absl::Status& status) { Lose(status); }};
  table_creator_ = std::make_unique<TableCreator>(servers);
  pusher_ = std::make_unique<Pusher>(servers, config_.worker().pushes_in_flight_max(),
                                     policy.retry_timeout_ms + policy.call_timeout_ms);
  puller_ = std::make_unique<Puller>(servers);
  push_pull_ = std::make_unique<worker::PushPull>(map->shards(), pusher_.get(), puller_.get());
  connected_.store(true);
}

std::unique_ptr<Connection> ClientImpl::MakeConnection(const ShardMap& map, uint32_t server, int64_t call_timeout_ms,
                                                       size_t shared_bytes) {
  const uint32_t message_max_bytes = config_.server().message_max_bytes();
  return std::make_unique<Connection>(PsName(server, config_.cluster().name()),
                                      MakeChannel(TargetOf(map, server), message_max_bytes, credentials_), NextQueue(),
                                      &timer_, call_timeout_ms, message_max_bytes, shared_bytes);
}

std::vector<std::unique_ptr<Connection>> ClientImpl::MakeConnections(const ShardMap& map, uint32_t server) {
  // With credentials nothing is shared.
  const bool share = config_.cluster().shared_memory() && credentials_ == nullptr;
  const size_t shared_bytes = share ? kSharedMemoryBytesMax : 0;
  std::vector<std::unique_ptr<Connection>> connections;
  for (uint32_t i = 0; i < config_.worker().connections_per_server(); ++i) {
    connections.push_back(MakeConnection(map, server, config_.worker().call_timeout_ms(), shared_bytes));
  }
  return connections;
}

void ClientImpl::FollowRoute(const std::shared_ptr<const ShardMap>& map) {
  MutexLock lock(&route_mu_);
  if (closing_) return;
  // Before Connect has made the channels there are none, and it will look at the newest map itself.
  for (uint32_t server = 0; server < places_.size(); ++server) {
    const Place before = std::exchange(places_[server], PlaceOf(*map, server));
    if (before == places_[server]) continue;
    if (before.address.empty()) {
      LODESTONE_LOG(INFO, "client", "{} has come", PeerOf(*map, server));
    } else if (before.address != places_[server].address) {
      LODESTONE_LOG(INFO, "client", "turns to {}, which was at {} before", PeerOf(*map, server), before.address);
    }
    channels_[server]->Redirect(PeerOf(*map, server), MakeConnections(*map, server));
    for (const Subscribed& subscribed : subscriptions_) {
      if (subscribed.server != server) continue;
      subscribed.stream->Redirect(PeerOf(*map, server), MakeConnection(*map, server, 0));
    }
  }
  // A restarted ps may not know this worker: it gets its shards back from followers.
  for (uint32_t server = 0; server < incarnations_.size(); ++server) {
    if (std::exchange(incarnations_[server], map->IncarnationOf(server)) == map->IncarnationOf(server)) continue;
    if (map->replicated() && sessions_ != nullptr) sessions_->Forget(server);
  }
  for (const auto& channel : channels_) channel->Follow(map);
  for (const Subscribed& subscribed : subscriptions_) subscribed.stream->Follow(!IsOut(*map, subscribed.server));
  if (rerouter_ != nullptr) rerouter_->Wake();
}

ClientImpl::~ClientImpl() {
  {
    MutexLock lock(&route_mu_);
    closing_ = true;
  }
  UnsubscribeAll();
  if (rerouter_ != nullptr) rerouter_->Cancel();
  for (const auto& channel : channels_) channel->Cancel();
  membership_.reset();
  routes_.reset();
  channels_.clear();  // With them goes the last reference to gradients in flight.
}

absl::Status ClientImpl::Push(const StepOrigin& step, std::span<const DenseGradient> dense,
                              std::span<const RowGradients> rows, const ReadVersions& read_versions,
                              std::function<void(PushResult)> done) {
  LODESTONE_RETURN_IF_ERROR(Health());
  return pusher_->Push(step, dense, rows, read_versions, std::move(done));
}

RangeSession ClientImpl::OpenRange(Incarnation range) {
  RangeSession session{range, sessions_->ForRange(range)};
  // A server that does not know it yet turns a push back, which waits for this then.
  for (uint32_t server = 0; server < channels_.size(); ++server) {
    if (!IsOut(*shard_map(), server)) session.sessions->Open(server, [](const absl::Status&) {});
  }
  return session;
}

void ClientImpl::Pull(std::vector<DensePull> dense, std::vector<RowPull> rows,
                      std::function<void(absl::Status, ShardVersions)> done) {
  if (absl::Status status = Health(); !status.ok()) {
    done(std::move(status), {});
    return;
  }
  puller_->Pull(std::move(dense), std::move(rows), std::move(done));
}

void ClientImpl::PullSteps(const StepRead& read, std::vector<DensePull> dense, std::vector<RowPull> rows,
                           std::function<void(absl::Status, ShardVersions, uint64_t)> done) {
  if (absl::Status status = Health(); !status.ok()) {
    done(std::move(status), {}, 0);
    return;
  }
  puller_->PullSteps(read, std::move(dense), std::move(rows), std::move(done));
}

absl::StatusOr<ShardVersions> ClientImpl::PullNow(std::vector<DensePull> dense, std::vector<RowPull> rows) {
  const Awaited<absl::StatusOr<ShardVersions>> pulled;
  Pull(std::move(dense), std::move(rows), [pulled](absl::Status status, ShardVersions versions) {
    if (!status.ok()) return pulled.Set(std::move(status));
    pulled.Set(std::move(versions));
  });
  return pulled.Await();
}

absl::StatusOr<SubscriptionId> ClientImpl::Subscribe(std::vector<const TableHandle*> tables,
                                                     SubscriptionListener listener) {
  LODESTONE_RETURN_IF_ERROR(Health());
  MutexLock lock(&route_mu_);
  const SubscriptionId id = ++last_subscription_;
  if (tables.empty()) return id;
  const std::shared_ptr<const ShardMap> map = shard_map();
  const auto positions = std::make_shared<ShardPositions>(map->shards());
  for (uint32_t server = 0; server < map->servers(); ++server) {
    auto stream = std::make_unique<Subscription>(
        PeerOf(*map, server), MakeConnection(*map, server, 0),
        Subscription::Options{.incarnation = incarnation(),
                              .server = server,
                              .wanted = !IsOut(*map, server),
                              .tables = tables,
                              .positions = positions,
                              .listener = listener,
                              .on_lost = [this](const absl::Status& status) { Lose(status); },
                              .on_unreachable = [this] { AskRoute(); },
                              .sessions = sessions_.get(),
                              .timer = &timer_,
                              .seed = SeedOf(2 * server + 1)});
    subscriptions_.push_back({id, server, std::move(stream)});
  }
  return id;
}

void ClientImpl::Unsubscribe(SubscriptionId subscription) {
  std::vector<Subscribed> ended;
  {
    MutexLock lock(&route_mu_);
    const auto is_other = [subscription](const Subscribed& of) { return of.id != subscription; };
    const auto first = std::partition(subscriptions_.begin(), subscriptions_.end(), is_other);
    ended.assign(std::make_move_iterator(first), std::make_move_iterator(subscriptions_.end()));
    subscriptions_.erase(first, subscriptions_.end());
  }
  ended.clear();  // Waits for callbacks, which may ask for routes.
}

void ClientImpl::UnsubscribeAll() {
  std::vector<Subscribed> ended;
  {
    MutexLock lock(&route_mu_);
    ended.swap(subscriptions_);
  }
  ended.clear();  // As Unsubscribe.
}

absl::StatusOr<std::vector<std::string>> ClientImpl::AwaitClock(Clock clock, const std::function<bool()>& stops) {
  LODESTONE_RETURN_IF_ERROR(Health());
  return membership_->AwaitClock(clock, stops);
}

absl::Status ClientImpl::Health() const {
  MutexLock lock(&mu_);
  return health_;
}

void ClientImpl::Lose(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (!health_.ok()) return;
    health_ = Annotate(status, observes() ? "the cluster does not serve this observer any more"
                                          : "this worker is no longer part of the cluster");
  }
  LODESTONE_LOG(ERROR, "client", "{}", std::string(Health().message()));
  if (connected_.load()) pusher_->Fail(Health());
}

std::vector<v1::WaitStatus> ClientImpl::Waits() const {
  std::vector<v1::WaitStatus> waits;
  const auto add = [&waits](std::optional<v1::WaitStatus> wait) {
    if (wait.has_value()) waits.push_back(*std::move(wait));
  };
  if (!connected_.load()) {
    waits.emplace_back().set_what("the other servers");
    return waits;
  }
  for (const auto& channel : channels_) add(channel->WaitLongerThan(kWaitingTellMs));
  add(rerouter_->WaitLongerThan(kWaitingTellMs));
  std::stable_sort(waits.begin(), waits.end(), [](const auto& a, const auto& b) { return a.seconds() > b.seconds(); });
  return waits;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(const v1::Config& config,
                                                        std::function<void(const v1::WorkerProgress&)> on_progress) {
  auto client = std::make_unique<ClientImpl>(config, ClientImpl::Part::kWorker, std::move(on_progress));
  LODESTONE_RETURN_IF_ERROR(client->Connect());
  return client;
}

absl::StatusOr<std::unique_ptr<ClusterReader>> ClusterReader::Observe(const v1::Config& config) {
  auto observer = std::make_unique<ClientImpl>(config, ClientImpl::Part::kObserver, nullptr);
  LODESTONE_RETURN_IF_ERROR(observer->Connect());
  return observer;
}

}  // namespace lodestone::worker
