// Random lives of a cluster: servers that die, leave, come back with and without their disk, or with a disk that lacks
// what was written last, lose their lease and do
// not know it, and a coordinator that is started again, while owners and followers do what they are to do: an owner
// waits for a follower from before it reports it in sync until its report that it is not has been accepted. Meanwhile
// an operator moves shards, and drains servers; where there are two copies, an owner waits for a learner likewise.
// Whatever happens, who is to own a shard has everything that was ever acknowledged.
#include <array>
#include <bitset>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/wire/shard_map.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kLeaseMs = 1000;
constexpr uint32_t kShards = 6;
constexpr uint32_t kOperations = 5000;
constexpr uint64_t kSeeds = 200;
constexpr size_t kPushesMax = 2048;  // Of one shard.

using Pushes = std::bitset<kPushesMax>;

// A ps while it runs, as far as replication goes.
struct Process {
  bool running = false;
  uint64_t token = 0;         // Names this run of the process.
  uint64_t predecessor = 0;   // The one before, in the same folder.
  std::optional<bool> whole;  // As its Join says.
  Incarnation life = 0;
  uint64_t reports = 0;
  std::optional<ShardMap> map;             // The newest that it has heard of.
  std::array<bool, kShards> waits{};       // As the owner: for a follower, before it acknowledges.
  std::array<uint64_t, kShards> stream{};  // As the owner: the token of the follower that has all and gets all.
  // As the owner, the same two of a learner, and which server it is.
  std::array<bool, kShards> waits_for_learner{};
  std::array<uint64_t, kShards> learner_stream{};
  std::array<uint32_t, kShards> learner{};
  std::array<uint64_t, kShards> follows{};  // As the follower, or a learner: the token of the owner that it listens to.
  std::array<uint64_t, kShards> gives_up{};  // As the owner: the number by which it answers no more; 0: it does.
};

// What a server keeps over the ends of its processes.
struct Disk {
  std::array<Pushes, kShards> shards;
  uint64_t folder = 0;
  uint64_t token = 0;  // Of the last process.
  bool fresh = true;   // No process has written there.
  bool whole = true;   // The machine has not gone down since one began to, and what it had before is there.
};

class Cluster {
 public:
  Cluster(uint64_t seed, uint32_t servers, uint32_t replicas)
      : random_(seed), servers_(servers), replicas_(replicas), processes_(servers), disks_(servers) {
    members_ = std::make_unique<Membership>(Options());
    for (uint32_t server = 0; server < servers; ++server) StartProcess(server);
    for (uint32_t server = 0; server < servers; ++server) Beat(server);
  }

  void Step() {
    const v1::CoordinatorState before = members_->SaveState();
    reported_.reset();
    for (ShardId shard = 0; shard < kShards; ++shard) equal_before_[shard] = members_->shards().equal().HolderOf(shard);
    const bool same_coordinator = Operate();
    CheckChange(before, same_coordinator);
    CheckNothingIsLost();
    CheckOneServes();
  }

  // With everybody alive and nothing lost on the way, all is in sync again, all planned moves end, and a server that
  // drains holds nothing.
  void Heal() {
    lossy_ = false;
    for (uint32_t server = 0; server < servers_; ++server) {
      v1::DrainRequest request;
      request.set_server(server);
      request.set_undo(true);
      ASSERT_TRUE(members_->Drain(request).ok());
    }
    members_->TakeExpired();
    for (int round = 0; round < 3; ++round) {
      for (uint32_t server = 0; server < servers_; ++server) {
        if (!processes_[server].running) StartProcess(server);
      }
      for (uint32_t server = 0; server < servers_; ++server) Beat(server);
    }
    // One that has lost its lease and joined again has no equal copy before it is started again.
    for (ShardId shard = 0; shard < kShards; ++shard) {
      if (members_->shards().IsLost(shard)) StartProcess(members_->shards().equal().HolderOf(shard) - 1);
    }
    SyncAll();
    EXPECT_TRUE(members_->shards().Route().ok());
    const bool drains = servers_ > replicas_;
    v1::DrainRequest request;
    request.set_server(0);
    ASSERT_EQ(members_->Drain(request).ok(), drains);
    for (uint32_t round = 0; round < 4 * kShards; ++round) SyncAll();  // Copied, and given up.
    EXPECT_EQ(members_->Status().shards_in_sync(), replicas_ == 1 ? 0 : kShards);
    EXPECT_EQ(members_->Status().moves_size(), 0) << members_->Status().DebugString();
    EXPECT_FALSE(members_->shards().HasLearners());
    for (ShardId shard = 0; drains && shard < kShards; ++shard) {
      EXPECT_NE(members_->shards().owners()[shard], 0);
      EXPECT_NE(members_->shards().followers()[shard], 1);
    }
  }

  void SyncAll() {
    for (uint32_t server = 0; server < servers_; ++server) Beat(server);
    for (uint32_t server = 0; server < servers_; ++server) {
      for (ShardId shard = 0; shard < kShards; ++shard) {
        if (!Owns(server, shard)) continue;
        // One that does not confirm what is given up is late, as any other.
        if (processes_[server].gives_up[shard] == 0 || processes_[server].stream[shard] == 0) {
          Report(server, shard, false);
          Bootstrap(server, shard);
        }
        Report(server, shard, true);
        if (!Owns(server, shard)) continue;
        ReportLearner(server, shard, false);
        BootstrapLearner(server, shard);
        ReportLearner(server, shard, true);
      }
    }
    CheckNothingIsLost();
  }

  uint64_t plans() const { return plans_; }
  // Learners that have become followers.
  uint64_t learnt() const { return learnt_; }
  uint64_t acknowledged() const { return acknowledged_; }
  uint64_t failovers() const { return failovers_; }
  uint64_t losses() const { return losses_; }
  uint64_t power_cuts() const { return power_cuts_; }
  // Shards that went to a server with an equal copy.
  uint64_t returns() const { return returns_; }

 private:
  uint32_t Draw(uint32_t below) { return std::uniform_int_distribution<uint32_t>(0, below - 1)(random_); }

  Membership::Options Options() const {
    Membership::Options options;
    options.cluster = "test";
    options.servers = servers_;
    options.shards = kShards;
    options.replicas = replicas_;
    options.lease_ms = kLeaseMs;
    options.time = &time_;
    return options;
  }

  // False if the coordinator is another one now.
  bool Operate() {
    const uint32_t server = Draw(servers_);
    const ShardId shard = Draw(kShards);
    Process& process = processes_[server];
    const uint32_t what = Draw(1000);
    if (what < 450) {
      Push(server, shard);
    } else if (what < 600) {
      Beat(server);
    } else if (what < 750) {
      const ShardId followed = FollowedFrom(server, shard);
      if (Owns(server, followed) && !process.waits[followed]) Bootstrap(server, followed);
      if (Draw(4) > 0) Report(server, followed, true);
      const ShardId learnt = LearntFrom(server, shard);
      if (Owns(server, learnt) && !process.waits_for_learner[learnt] && Draw(2) == 0) BootstrapLearner(server, learnt);
      if (Draw(2) == 0) ReportLearner(server, learnt, true);
    } else if (what < 780) {
      if (process.waits[shard]) Report(server, shard, false);
      if (Draw(2) == 0) ReportLearner(server, shard, false);
    } else if (what < 800) {
      DeliverDelayed();
    } else if (what < 900) {
      time_.AdvanceMs(Draw(300));
    } else if (what < 940) {
      members_->TakeExpired();
    } else if (what < 950) {
      process.running = false;
    } else if (what < 957) {
      Leave(server);
    } else if (what < 965) {
      PlanMoves(server, shard);
    } else if (what < 985) {
      if (!process.running || Draw(5) == 0) StartProcess(server);
    } else if (what < 989) {
      CutPower(server);
    } else if (what < 993) {
      if (!MayRestart()) return true;
      RestartCoordinator();
      return false;
    } else {
      return LoseDisk(server);
    }
    return true;
  }

  // What cannot be is refused.
  void PlanMoves(uint32_t server, ShardId shard) {
    const uint32_t what = Draw(10);
    if (what < 2) {
      v1::DrainRequest request;
      request.set_server(server);
      request.set_undo(what == 0);
      (void)members_->Drain(request);
      return;
    }
    v1::MoveRequest request;
    request.add_shards(shard);
    request.add_shards(Draw(kShards));
    request.set_server(server);
    request.set_cancel(what == 2);
    request.set_level(what == 3);
    plans_ += members_->Move(request).ok();
  }

  void StartProcess(uint32_t server) {
    Process& process = processes_[server];
    process = Process();
    process.running = true;
    process.token = ++tokens_;
    process.predecessor = std::exchange(disks_[server].token, process.token);
    if (disks_[server].folder == 0) disks_[server].folder = ++folders_;
    if (!disks_[server].fresh) process.whole = disks_[server].whole;
    Join(server);
  }

  void Join(uint32_t server) {
    Process& process = processes_[server];
    v1::JoinRequest request;
    request.set_role(v1::ROLE_SERVER);
    request.set_address(absl::StrCat("host:", 1 + server));
    request.set_index_plus_one(server + 1);
    request.set_cluster("test");
    request.set_shards(kShards);
    request.set_token(process.token);
    request.set_predecessor(process.predecessor);
    request.mutable_data()->set_folder(disks_[server].folder);
    request.mutable_data()->set_knows_learners(true);
    if (process.whole.has_value()) request.mutable_data()->set_whole(*process.whole);
    const auto joined = members_->Join(request);
    ASSERT_TRUE(joined.ok()) << joined.status();
    process.life = joined->incarnation();
    FollowRoute(server);
  }

  void Beat(uint32_t server) {
    Process& process = processes_[server];
    if (!process.running) return;
    v1::HeartbeatRequest request;
    request.set_incarnation(process.life);
    const auto beat = members_->Heartbeat(request);
    if (!beat.ok()) return Join(server);
    if (!process.map.has_value() || beat->route_epoch() > process.map->epoch()) FollowRoute(server);
  }

  void Leave(uint32_t server) {
    Process& process = processes_[server];
    if (!process.running) return;
    v1::HeartbeatRequest request;
    request.set_incarnation(process.life);
    request.set_leaving(true);
    (void)members_->Heartbeat(request);
    process.running = false;
  }

  void FollowRoute(uint32_t server) {
    Process& process = processes_[server];
    v1::RouteRequest request;
    request.set_role(v1::ROLE_SERVER);
    request.set_incarnation(process.life);
    const auto route = members_->Route(request);
    if (!route.ok() || (lossy_ && Draw(20) == 0)) return;
    const ShardMap map = *ShardMap::FromProto(*route);
    if (!process.map.has_value() && !map.LostBy(server).empty()) return;  // It does not begin.
    for (ShardId shard = 0; shard < kShards; ++shard) {
      if (map.OwnerOf(shard) != server || (process.map.has_value() && process.map->OwnerOf(shard) == server)) continue;
      EXPECT_TRUE(HasAll(server, shard)) << "it begins to serve shard " << shard;
    }
    disks_[server].whole = true;  // It writes from now on.
    disks_[server].fresh = false;
    for (ShardId shard = 0; shard < kShards; ++shard) {
      const bool owned = Owns(server, shard) && process.map->TermOf(shard) == map.TermOf(shard);
      if (map.OwnerOf(shard) != server || !owned) {
        process.waits[shard] = false;
        process.stream[shard] = 0;
        process.waits_for_learner[shard] = false;
        process.learner_stream[shard] = 0;
      }
      process.gives_up[shard] = map.OwnerOf(shard) == server ? map.HandoverOf(shard) : 0;
      const bool followed = process.map.has_value() && process.map->TermOf(shard) == map.TermOf(shard);
      if (!map.IsFollowedBy(shard, server) || !followed) process.follows[shard] = 0;
    }
    process.map = map;
  }

  bool Owns(uint32_t server, ShardId shard) const {
    const Process& process = processes_[server];
    return process.running && process.map.has_value() && process.map->OwnerOf(shard) == server;
  }
  bool Serves(uint32_t server, ShardId shard) const {
    return Owns(server, shard) && processes_[server].gives_up[shard] == 0;
  }
  // The next shard of the server, from `shard` on, that has a follower; `shard` if there is none.
  ShardId FollowedFrom(uint32_t server, ShardId shard) const {
    for (ShardId i = 0; i < kShards; ++i) {
      const ShardId next = (shard + i) % kShards;
      if (Owns(server, next) && processes_[server].map->FollowerOf(next).has_value()) return next;
    }
    return shard;
  }
  // The same with a learner.
  ShardId LearntFrom(uint32_t server, ShardId shard) const {
    for (ShardId i = 0; i < kShards; ++i) {
      const ShardId next = (shard + i) % kShards;
      if (Owns(server, next) && processes_[server].map->LearnerOf(next).has_value()) return next;
    }
    return shard;
  }
  bool Listens(uint32_t server, uint32_t owner, ShardId shard) const {
    const Process& process = processes_[server];
    return process.running && process.map.has_value() && process.map->IsFollowedBy(shard, server) &&
           process.map->OwnerOf(shard) == owner;
  }
  // The one that the owner's map names, if it runs and listens to the owner.
  std::optional<uint32_t> Follower(uint32_t owner, ShardId shard) const {
    const std::optional<uint32_t> server = processes_[owner].map->FollowerOf(shard);
    if (!server.has_value()) return std::nullopt;
    return Listens(*server, owner, shard) ? server : std::nullopt;
  }

  // The follower gets the owner's state; from now on the owner waits for it.
  void Bootstrap(uint32_t owner, ShardId shard) {
    const std::optional<uint32_t> follower = Follower(owner, shard);
    if (!follower.has_value()) return;
    disks_[*follower].shards[shard] = disks_[owner].shards[shard];
    processes_[*follower].follows[shard] = processes_[owner].token;
    processes_[owner].stream[shard] = processes_[*follower].token;
    processes_[owner].waits[shard] = true;
  }

  void BootstrapLearner(uint32_t owner, ShardId shard) {
    Process& process = processes_[owner];
    const std::optional<uint32_t> learner = process.map->LearnerOf(shard);
    if (process.waits_for_learner[shard] || !learner.has_value() || !Listens(*learner, owner, shard)) return;
    disks_[*learner].shards[shard] = disks_[owner].shards[shard];
    processes_[*learner].follows[shard] = process.token;
    process.learner[shard] = *learner;
    process.learner_stream[shard] = processes_[*learner].token;
    process.waits_for_learner[shard] = true;
  }
  // Whether a push reaches the one at the other end of a stream, which breaks otherwise.
  bool Send(uint32_t owner, std::optional<uint32_t> to, ShardId shard, size_t push, uint64_t* stream) {
    if (*stream == 0) return false;
    const bool arrives = to.has_value() && processes_[*to].running && processes_[*to].token == *stream &&
                         processes_[*to].follows[shard] == processes_[owner].token && !(lossy_ && Draw(30) == 0);
    if (arrives) disks_[*to].shards[shard].set(push);
    if (!arrives) *stream = 0;
    return arrives;
  }

  void Push(uint32_t owner, ShardId shard) {
    if (!Serves(owner, shard) || pushed_[shard] == kPushesMax) return;
    Process& process = processes_[owner];
    const size_t push = pushed_[shard]++;
    disks_[owner].shards[shard].set(push);
    const bool confirmed = Send(owner, Follower(owner, shard), shard, push, &process.stream[shard]);
    const bool learnt = Send(owner, process.learner[shard], shard, push, &process.learner_stream[shard]);
    if ((process.waits[shard] && !confirmed) || (process.waits_for_learner[shard] && !learnt)) return;
    acked_[shard].set(push);
    ++acknowledged_;
  }

  // A report, which may get lost on its way, or be late, or its answer get lost: nullopt.
  std::optional<v1::ReportSyncResponse> Tell(uint32_t owner, ShardId shard, Incarnation follower, bool in_sync,
                                             uint64_t gives_up) {
    Process& process = processes_[owner];
    v1::ReportSyncRequest request;
    request.set_incarnation(process.life);
    request.set_sequence(++process.reports);
    auto* const report = request.add_reports();
    report->set_shard(shard);
    report->set_in_sync(in_sync);
    report->set_term(process.map->TermOf(shard));
    report->set_follower(follower);
    report->set_gives_up(gives_up);
    if (lossy_ && Draw(6) == 0) delayed_.push_back(request);
    if (lossy_ && Draw(10) == 0) return std::nullopt;
    const auto told = Deliver(request);
    if (!told.ok() || (lossy_ && Draw(10) == 0)) return std::nullopt;
    return *told;
  }
  void Report(uint32_t owner, ShardId shard, bool in_sync) {
    Process& process = processes_[owner];
    if (!Owns(owner, shard) || (in_sync && (!process.waits[shard] || process.stream[shard] == 0))) return;
    const std::optional<uint32_t> follower = Follower(owner, shard);
    if (in_sync && (!follower.has_value() || processes_[*follower].token != process.stream[shard])) return;
    const auto told =
        Tell(owner, shard, in_sync ? processes_[*follower].life : 0, in_sync, in_sync ? process.gives_up[shard] : 0);
    if (!told.has_value()) return;
    if (!in_sync && told->accepted(0)) {
      process.waits[shard] = false;
      process.stream[shard] = 0;
    }
    if (told->route_epoch() > process.map->epoch()) FollowRoute(owner);
  }
  void ReportLearner(uint32_t owner, ShardId shard, bool in_sync) {
    Process& process = processes_[owner];
    if (!Owns(owner, shard) || !process.waits_for_learner[shard]) return;
    const Process& learner = processes_[process.learner[shard]];
    const bool is_there = learner.running && learner.token == process.learner_stream[shard];
    if (in_sync && !is_there) return;
    const auto told = Tell(owner, shard, learner.life, in_sync, /*gives_up=*/0);
    if (!told.has_value()) return;
    if (told->accepted(0)) {
      if (in_sync) {
        process.waits[shard] = true;
        process.stream[shard] = process.learner_stream[shard];
        learnt_ += 1;
      }
      process.waits_for_learner[shard] = false;
      process.learner_stream[shard] = 0;
    }
    if (told->route_epoch() > process.map->epoch()) FollowRoute(owner);
  }
  void DeliverDelayed() {
    if (delayed_.empty()) return;
    const size_t i = Draw(delayed_.size());
    (void)Deliver(delayed_[i]);
    delayed_.erase(delayed_.begin() + i);
  }
  absl::StatusOr<v1::ReportSyncResponse> Deliver(const v1::ReportSyncRequest& request) {
    const v1::CoordinatorState before = members_->SaveState();
    const auto told = members_->ReportSync(request);
    if (!told.ok() || !told->accepted(0)) return told;
    const auto& report = request.reports(0);
    const uint32_t owner = before.owners(report.shard());
    const v1::MemberStatus sender = members_->Status().servers(owner);
    EXPECT_EQ(sender.incarnation(), request.incarnation()) << "only the owner's present life is believed";
    EXPECT_TRUE(sender.alive());
    if (report.in_sync()) reported_.set(report.shard());
    return told;
  }

  bool HasAll(uint32_t server, ShardId shard) const { return (acked_[shard] & ~disks_[server].shards[shard]).none(); }

  // The machine of a server goes down, with the end of its log, if each shard of which it has all is whole elsewhere
  // too, as the coordinator knows: at a server in sync, or that was so when both ended, or at the owner.
  void CutPower(uint32_t server) {
    if (replicas_ == 1) return;  // What a machine that went down lacks is nowhere else.
    const v1::CoordinatorState state = members_->SaveState();
    if (state.owners().empty()) return;
    for (ShardId shard = 0; shard < kShards; ++shard) {
      if (UndecidedIn(state, shard)) return;
      uint32_t other = state.owners(shard) + 1;
      if (state.owners(shard) == server) {
        const uint32_t equal = members_->shards().equal().HolderOf(shard);
        other = InSyncIn(state, shard) ? FollowerIn(state, shard) : equal;
      }
      if (other == 0 || !disks_[other - 1].whole || !HasAll(other - 1, shard)) return;
    }
    processes_[server].running = false;
    Disk& disk = disks_[server];
    disk.whole = false;
    for (ShardId shard = 0; shard < kShards; ++shard) {
      for (uint32_t i = Draw(20); i > 0 && pushed_[shard] >= i; --i) disk.shards[shard].reset(pushed_[shard] - i);
    }
    ++power_cuts_;
    // Another process may end at the same moment.
    if (Draw(2) == 0) processes_[Draw(servers_)].running = false;
  }

  // Not while an owner has lost power whose life has not ended for the coordinator: another one does not know whether
  // it was told that it is the owner, and lets it go on with what it has.
  bool MayRestart() const {
    const v1::CoordinatorState state = members_->SaveState();
    for (ShardId shard = 0; shard < static_cast<ShardId>(state.owners_size()); ++shard) {
      const bool saved = !state.equal_copies().empty() && state.equal_copies(shard) != 0;
      if (!disks_[state.owners(shard)].whole && !saved && members_->shards().equal().HolderOf(shard) != 0) return false;
    }
    return true;
  }

  // Server 0 ends with it. What was sent to the former one is lost.
  void RestartCoordinator() {
    const v1::CoordinatorState state = members_->SaveState();
    members_ = std::make_unique<Membership>(Options());
    ASSERT_TRUE(members_->Restore(state).ok());
    processes_[0].running = false;
    delayed_.clear();
  }

  // A server dies with its disk, if all that it owns has a follower in sync that lives, and does. False if the
  // coordinator was started again meanwhile.
  bool LoseDisk(uint32_t server) {
    if (replicas_ == 1) return true;
    for (uint32_t other = 0; other < servers_; ++other) Beat(other);
    const v1::CoordinatorState state = members_->SaveState();
    if (!members_->shards().Route().ok()) return true;
    for (ShardId shard = 0; shard < kShards; ++shard) {
      // It may be the only whole one: the owner's machine went down.
      if (!disks_[state.owners(shard)].whole && state.owners(shard) != server && HasAll(server, shard)) return true;
      if (state.owners(shard) != server) continue;
      const Process& follower = processes_[FollowerIn(state, shard) - 1];
      if (!InSyncIn(state, shard) || !follower.running || !members_->members().CheckAlive(follower.life).ok())
        return true;
    }
    const bool restart =
        state.followers_size() > 0 && Draw(3) == 0 && AllElseOfZeroIsInSync(state, server) && MayRestart();
    processes_[server].running = false;
    disks_[server] = Disk();
    disks_[server].whole = false;
    ++losses_;
    if (restart) RestartCoordinator();
    if (Draw(2) == 0) {
      StartProcess(server);
      if (restart && Draw(2) == 0 && MayRestart()) RestartCoordinator();
    } else {
      time_.AdvanceMs(kLeaseMs - 1);
      for (uint32_t other = 0; other < servers_; ++other) Beat(other);
      time_.AdvanceMs(1);
      members_->TakeExpired();
    }
    for (uint32_t other = 0; other < servers_; ++other) Beat(other);
    return !restart;
  }
  // With the coordinator server 0 ends, so that it must not be what remains of a shard of `server`.
  bool AllElseOfZeroIsInSync(const v1::CoordinatorState& state, uint32_t server) const {
    for (ShardId shard = 0; shard < kShards; ++shard) {
      if (state.owners(shard) == server && FollowerIn(state, shard) == 1) return false;
    }
    return true;
  }

  // Of a saved state, which has no followers where there are none.
  static uint32_t FollowerIn(const v1::CoordinatorState& state, ShardId shard) {
    return state.followers().empty() ? 0 : state.followers(static_cast<int>(shard));
  }
  static bool InSyncIn(const v1::CoordinatorState& state, ShardId shard) {
    return !state.in_sync().empty() && state.in_sync(static_cast<int>(shard));
  }
  static bool UndecidedIn(const v1::CoordinatorState& state, ShardId shard) {
    return !state.undecided().empty() && state.undecided(static_cast<int>(shard));
  }
  static uint64_t TermIn(const v1::CoordinatorState& state, ShardId shard) {
    return state.terms().empty() ? 0 : state.terms(static_cast<int>(shard));
  }

  void CheckChange(const v1::CoordinatorState& before, bool same_coordinator) {
    const v1::CoordinatorState after = members_->SaveState();
    ASSERT_GE(after.epoch(), before.epoch());
    if (before.owners().empty()) return;
    bool map_changed = false;
    for (ShardId shard = 0; shard < kShards; ++shard) {
      const uint32_t owner = before.owners(shard), next = after.owners(shard);
      map_changed = map_changed || owner != next || FollowerIn(before, shard) != FollowerIn(after, shard);
      ASSERT_NE(FollowerIn(after, shard), next + 1) << "nobody follows itself";
      if (owner == next) {
        if (TermIn(after, shard) != TermIn(before, shard)) {
          ASSERT_GT(TermIn(after, shard), before.epoch()) << "its owner was started again";
          ASSERT_LE(TermIn(after, shard), after.epoch());
        }
        const bool is_new = FollowerIn(after, shard) != FollowerIn(before, shard);
        if (InSyncIn(after, shard) && (!InSyncIn(before, shard) || is_new)) {
          ASSERT_TRUE(reported_[shard]);
        }
        continue;
      }
      ++failovers_;
      ASSERT_GT(TermIn(after, shard), before.epoch());
      ASSERT_LE(TermIn(after, shard), after.epoch());
      // Several things happen when a disk is lost; otherwise one step is one change.
      if (!same_coordinator) continue;
      const bool was_equal = equal_before_[shard] == next + 1;
      returns_ += was_equal;
      ASSERT_TRUE(InSyncIn(before, shard) || reported_[shard] || was_equal);
    }
    if (map_changed) {
      ASSERT_GT(after.epoch(), before.epoch());
    }
  }

  // Without replicas, also while a shard moves, and an owner whose life has ended for the coordinator may serve still.
  // With them, leases are for that.
  void CheckOneServes() {
    for (ShardId shard = 0; replicas_ == 1 && shard < kShards; ++shard) {
      uint32_t serve = 0;
      for (uint32_t server = 0; server < servers_; ++server) serve += Serves(server, shard);
      ASSERT_LE(serve, 1) << "shard " << shard;
    }
  }

  void CheckNothingIsLost() {
    const v1::CoordinatorState state = members_->SaveState();
    for (ShardId shard = 0; shard < static_cast<ShardId>(state.owners_size()); ++shard) {
      if (InSyncIn(state, shard)) {
        // Until it is known that its machine went down.
        const Disk& disk = disks_[FollowerIn(state, shard) - 1];
        ASSERT_TRUE(!disk.whole || HasAll(FollowerIn(state, shard) - 1, shard)) << "shard " << shard;
      }
      if (!UndecidedIn(state, shard)) {
        const Disk& disk = disks_[state.owners(shard)];
        ASSERT_TRUE(!disk.whole || HasAll(state.owners(shard), shard)) << "shard " << shard;
      }
      // What the coordinator takes for as good as the owner's.
      const uint32_t equal = members_->shards().equal().HolderOf(shard);
      if (equal != 0) {
        ASSERT_TRUE(!disks_[equal - 1].whole || HasAll(equal - 1, shard))
            << "shard " << shard << " at ps " << equal - 1;
      }
    }
  }

  std::mt19937_64 random_;
  const uint32_t servers_, replicas_;
  ManualTime time_;
  std::unique_ptr<Membership> members_;
  std::vector<Process> processes_;
  std::vector<Disk> disks_;
  std::array<Pushes, kShards> acked_;
  std::array<size_t, kShards> pushed_{};
  std::bitset<kShards> reported_;  // In sync, in this step.
  std::array<uint32_t, kShards> equal_before_{};
  std::vector<v1::ReportSyncRequest> delayed_;
  bool lossy_ = true;
  uint64_t tokens_ = 0, folders_ = 0, plans_ = 0, acknowledged_ = 0, failovers_ = 0, losses_ = 0, power_cuts_ = 0,
           returns_ = 0, learnt_ = 0;
};

struct Sums {
  uint64_t acknowledged = 0, failovers = 0, losses = 0, power_cuts = 0, returns = 0, plans = 0, learnt = 0;
};

Sums RunSeeds(uint32_t replicas) {
  Sums sums;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Cluster cluster(seed, 2 + seed % 3, replicas);
    for (uint32_t step = 0; step < kOperations; ++step) {
      SCOPED_TRACE(absl::StrCat("step ", step));
      cluster.Step();
      if (::testing::Test::HasFatalFailure() || ::testing::Test::HasNonfatalFailure()) return sums;
    }
    cluster.Heal();
    sums.acknowledged += cluster.acknowledged();
    sums.failovers += cluster.failovers();
    sums.losses += cluster.losses();
    sums.power_cuts += cluster.power_cuts();
    sums.returns += cluster.returns();
    sums.plans += cluster.plans();
    sums.learnt += cluster.learnt();
  }
  std::printf("seeds 1 to %" PRIu64 ", %" PRIu32 " replicas: %" PRIu64 " acknowledged, %" PRIu64
              " shards got another owner, %" PRIu64 " of these one with an equal copy, %" PRIu64
              " moves planned, %" PRIu64 " learners became followers, %" PRIu64 " disks lost, %" PRIu64 " power cuts\n",
              kSeeds, replicas, sums.acknowledged, sums.failovers, sums.returns, sums.plans, sums.learnt, sums.losses,
              sums.power_cuts);
  return sums;
}

TEST(FailoverRandom, WhoIsToOwnAShardHasAllThatWasAcknowledged) {
  const Sums sums = RunSeeds(/*replicas=*/2);
  EXPECT_GT(sums.acknowledged, 10'000);
  EXPECT_GT(sums.failovers, 500);
  EXPECT_GT(sums.losses, 100);
  EXPECT_GT(sums.power_cuts, 100);
  EXPECT_GT(sums.returns, 100);
  EXPECT_GT(sums.plans, 500);
  EXPECT_GT(sums.learnt, 500);
}

TEST(FailoverRandom, WithoutReplicasWhoIsToOwnAShardThatMovesHasAllThatWasAcknowledged) {
  const Sums sums = RunSeeds(/*replicas=*/1);
  EXPECT_GT(sums.acknowledged, 10'000);
  EXPECT_GT(sums.failovers, 200);
  EXPECT_GT(sums.plans, 500);
}

}  // namespace
}  // namespace lodestone::server
