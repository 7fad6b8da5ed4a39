#include "server/replication/replication.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

// A follower that confirms nothing for so much of a lease counts no more: pushes have waited for it long enough.
constexpr int64_t kPatiencePartOfLease = 4;

constexpr int64_t kNoteAgainMs = 1000;  // After a note that the disk has not taken.

Replicator::Options ReplicatorOptions(const v1::Config& config, const Replication::Dependencies& dependencies,
                                      std::function<absl::Status()> may_serve) {
  Replicator::Options options;
  options.cluster = config.cluster().name();
  options.shards = config.cluster().shards();
  options.seed = config.cluster().seed();
  options.server = config.server().index();
  options.replicated = config.cluster().replicas() > 1;
  options.replicas = config.cluster().replicas();
  options.in_sync_min = config.cluster().in_sync_min();
  options.patience_ms = std::max<int64_t>(1, config.coordinator().lease_ms() / kPatiencePartOfLease);
  options.report = [dependencies](const v1::ReportSyncRequest& request) -> absl::StatusOr<v1::ReportSyncResponse> {
    // Once a follower counts, a shard of this ps's logs may become its own.
    if (dependencies.note_shared) LODESTONE_RETURN_IF_ERROR(dependencies.note_shared());
    return dependencies.report(request);
  };
  options.ask_route = dependencies.ask_route;
  options.may_serve = std::move(may_serve);
  options.access = dependencies.access;
  options.updates = dependencies.updates;
  return options;
}

Follower::Options FollowerOptions(const v1::Config& config, const Replication::Dependencies& dependencies) {
  Follower::Options options;
  options.cluster = config.cluster().name();
  options.shards = config.cluster().shards();
  options.seed = config.cluster().seed();
  options.server = config.server().index();
  options.incarnation = dependencies.incarnation;
  options.ask_route = dependencies.ask_route;
  options.on_state = dependencies.on_state;
  options.on_disk = dependencies.on_disk;
  options.credentials = dependencies.credentials;
  options.open = dependencies.open;
  options.updates = dependencies.updates;
  return options;
}

}  // namespace

// Follow takes and gives ByteBuffers: payloads are sent from where they lie.
class Replication::Service final : public v1::Replication::WithRawCallbackMethod_Follow<v1::Replication::Service> {
 public:
  explicit Service(Replicator* replicator) : replicator_(replicator) {}
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Follow(grpc::CallbackServerContext* context) override {
    return replicator_->Open(context);
  }

 private:
  Replicator* const replicator_;
};

Replication::Replication(const v1::Config& config, Dependencies dependencies, Store* store)
    : server_(config.server().index()),
      shards_(config.cluster().shards()),
      replicated_(config.cluster().replicas() > 1),
      dependencies_(std::move(dependencies)),
      store_(store),
      newest_(shards_, dependencies_.updates),
      replicator_(ReplicatorOptions(config, dependencies_, [this] { return CheckLease(); }), store, &newest_),
      follower_(FollowerOptions(config, dependencies_), store, &newest_),
      service_(std::make_unique<Service>(&replicator_)) {
  store->log().SetReplicas(&replicator_);
  store->gate().SetCheck([this] { return CheckLease(); });
  thread_ = Thread([this] { Run(); });
}

Replication::~Replication() { Shutdown(); }

absl::Status Replication::CheckLease() const {
  if (losing_.load()) return absl::AbortedError("shards of this ps go to other owners just now: the map says which");
  if (!replicated_) return dependencies_.check_place ? dependencies_.check_place() : absl::OkStatus();
  const int64_t late_ms = time_.NowMs() - dependencies_.lease_ends_ms();
  if (late_ms < 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("the lease of ps ", server_, " has ended ", late_ms, " ms ago: another ps may own its shards now"));
}

void Replication::Prepare(const ShardMap& map) {
  for (const ShardId shard : map.ShardsOf(server_)) replicator_.Own(shard, map.TermOf(shard));
  MutexLock lock(&mu_);
  if (map.epoch() < epoch_) return;  // A newer one has come already.
  epoch_ = map.epoch();
  map_ = map;
}

std::vector<ShardId> Replication::CopiesToBringBack(const ShardMap& map, bool has_log) const {
  std::vector<ShardId> copies;
  for (ShardId shard = 0; shard < shards_; ++shard) {
    const uint32_t owner = map.OwnerOf(shard);
    if (owner == server_) continue;
    const bool unserved = map.Lost(shard) || map.Away(owner);
    if (unserved || (has_log && map.IsFollowedBy(shard, server_))) copies.push_back(shard);
  }
  return copies;
}

std::vector<v1::ShardCopy> Replication::Copies() const {
  std::vector<v1::ShardCopy> copies;
  for (const ShardId shard : store_->shards().held()) {
    if (store_->shards().RoleOf(shard) != ShardRole::kFollows || store_->shards().VersionOf(shard) == 0) continue;
    v1::ShardCopy& copy = copies.emplace_back();
    copy.set_shard(shard);
    copy.set_version(store_->shards().VersionOf(shard));
  }
  return copies;
}

void Replication::Begin() {
  MutexLock lock(&mu_);
  begun_ = true;
  changed_.NotifyAll();
}

void Replication::SetMap(const ShardMap& map) {
  MutexLock lock(&mu_);
  if (map.epoch() < epoch_) {
    LODESTONE_LOG(
        ERROR, "replication",
        "the coordinator's map is older than the one before, and is not followed: the coordinator has lost its state "
        "epoch={} before={}",
        map.epoch(), epoch_);
    return;
  }
  epoch_ = map.epoch();
  map_ = map;
  for (const ShardId shard : store_->shards().owned()) {
    if (map.OwnerOf(shard) != server_) losing_.store(true);
  }
  changed_.NotifyAll();
}

void Replication::FreeOthers() {
  MutexLock lock(&mu_);
  free_others_ = true;
  changed_.NotifyAll();
}

void Replication::Run() {
  std::optional<ShardMap> applied;
  mu_.Lock();
  while (!shut_down_) {
    if (begun_ && !map_.has_value() && free_others_ && applied.has_value()) {
      free_others_ = false;
      mu_.Unlock();
      FreeOthers(*applied);
      mu_.Lock();
      continue;
    }
    if (!begun_ || !map_.has_value()) {
      changed_.Wait(&mu_);
      continue;
    }
    applied = std::exchange(map_, std::nullopt);
    mu_.Unlock();
    Apply(*applied);
    mu_.Lock();
    if (map_.has_value()) continue;
    losing_.store(false);
    mu_.Unlock();
    const bool noted = NoteShared(*applied);
    if (noted) follower_.Follow(*applied, [this] { return Superseded(); });
    mu_.Lock();
    if (noted) continue;
    if (!map_.has_value() && !shut_down_) changed_.WaitForMs(&mu_, kNoteAgainMs);
    if (!map_.has_value()) map_ = applied;
  }
  mu_.Unlock();
}

bool Replication::NoteShared(const ShardMap& map) {
  bool shares = !map.FollowedBy(server_).empty();
  for (const ShardId shard : map.ShardsOf(server_)) shares = shares || map.FollowerOf(shard).has_value();
  if (!shares || !dependencies_.note_shared) return true;
  const absl::Status noted = dependencies_.note_shared();
  if (noted.ok()) return true;
  LODESTONE_LOG(ERROR, "replication",
                "cannot note that this folder holds copies, and follows no other ps before it can error={}",
                noted.ToString());
  return false;
}

bool Replication::Superseded() const {
  MutexLock lock(&mu_);
  return map_.has_value() || shut_down_;
}

void Replication::Apply(const ShardMap& map) {
  std::vector<ShardId> lost, won, missing;
  for (ShardId shard = 0; shard < shards_; ++shard) {
    if (store_->shards().RoleOf(shard) < ShardRole::kGivesUp) continue;
    // In another term it was another's meanwhile, as far as the coordinator knows.
    if (map.OwnerOf(shard) != server_ || map.TermOf(shard) != replicator_.TermOf(shard)) lost.push_back(shard);
  }
  for (const ShardId shard : lost) {
    const bool handed_over = replicator_.NextOwnerHasAll(shard, map.OwnerOf(shard)) && map.IsFollowedBy(shard, server_);
    store_->shards().Disown(shard);
    replicator_.Disown(shard);
    // Nobody serves it: what this ps has of it stays the copy that an operator may promote. Or it goes on from where it
    // is: it was given up before the next owner had its first update of its own.
    const bool stays = map.Lost(shard) || map.OwnerOf(shard) == server_ || handed_over;
    if (stays) store_->shards().SetRole(shard, ShardRole::kFollows);
  }
  follower_.StopFollowing(map);  // From here on only this ps changes the shards that it has won.
  for (ShardId shard = 0; shard < shards_; ++shard) {
    if (map.OwnerOf(shard) != server_) continue;
    const ShardRole role = store_->shards().RoleOf(shard);
    if (role == ShardRole::kFollows) won.push_back(shard);
    if (role < ShardRole::kFollows) missing.push_back(shard);
  }
  for (const ShardId shard : won) {
    replicator_.Own(shard, map.TermOf(shard));
    store_->shards().Own(shard, map.TermOf(shard));
  }
  replicator_.SetMap(map);
  const bool took_back = GiveUp(map);
  if (!lost.empty() || !won.empty() || took_back) {
    LODESTONE_LOG(INFO, "replication", "owns other shards epoch={} won={} lost={} owned={}", map.epoch(), won.size(),
                  lost.size(), store_->shards().owned().size());
    dependencies_.on_owners_changed();
  }
  if (!missing.empty()) {
    // Only a ps that was in sync is made the owner, and one that begins owns what it brought back: this cannot be.
    LODESTONE_LOG(ERROR, "replication",
                  "the shard map gives this ps shards that it does not hold; they are not served until it is started "
                  "again epoch={} shards={} first={}",
                  map.epoch(), missing.size(), missing.front());
  }
}

bool Replication::GiveUp(const ShardMap& map) {
  bool took_back = false;
  for (ShardId shard = 0; shard < shards_; ++shard) {
    const ShardRole role = store_->shards().RoleOf(shard);
    const uint64_t handover = map.HandoverOf(shard);
    if (role < ShardRole::kGivesUp || (role == ShardRole::kOwns && handover == 0)) continue;
    if (role == ShardRole::kOwns) store_->shards().GiveUp(shard);
    replicator_.GiveUp(shard, handover);
    if (handover > 0) continue;
    store_->shards().TakeBack(shard);
    took_back = true;
  }
  return took_back;
}

void Replication::FreeOthers(const ShardMap& map) {
  size_t freed = 0;
  for (ShardId shard = 0; shard < shards_; ++shard) {
    const ShardRole role = store_->shards().RoleOf(shard);
    if (role == ShardRole::kNone || role >= ShardRole::kGivesUp) continue;
    if (map.OwnerOf(shard) == server_ || map.IsFollowedBy(shard, server_)) continue;
    store_->replayer().Unfollow(shard);
    ++freed;
  }
  if (freed > 0) LODESTONE_LOG(INFO, "replication", "frees what it neither owns nor follows shards={}", freed);
}

void Replication::Shutdown() {
  {
    MutexLock lock(&mu_);
    if (shut_down_) return;
    shut_down_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  replicator_.Shutdown();
  follower_.Stop();
}

void Replication::FillStatus(v1::StatusResponse* status) const {
  if (!replicated_ && !replicator_.engaged() && !follower_.follows()) return;
  replicator_.FillStatus(status);
  follower_.FillStatus(status);
  if (!replicated_) return;
  status->mutable_replication()->set_lease_seconds(static_cast<double>(dependencies_.lease_ends_ms() - time_.NowMs()) /
                                                   1000);
}

}  // namespace lodestone::server
