// Random lives of a cluster: servers that die, leave, come back with and without their disk, or with a disk that lacks
// what was written last, lose their lease and do
// not know it, and a coordinator that is started again, while owners and followers do what they are to do: an owner
// waits for a follower from before it reports it in sync until its report that it is not has been accepted. Meanwhile
// an operator moves shards, and drains servers; where there are two copies or three, an owner waits for a learner
// likewise. Whatever happens, who is to own a shard has everything that was ever acknowledged.
#include <algorithm>
#include <array>
#include <bitset>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/wire/shard_map.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "tests/server/coordinator/replicated_members.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kRandomShards = 6;
constexpr uint32_t kServersMax = 5;
constexpr uint32_t kOperations = 5000;
constexpr uint64_t kSeeds = 200;
constexpr size_t kPushesMax = 2048;  // Of one shard.

using Pushes = std::bitset<kPushesMax>;

// What an owner knows of another server's copy of a shard.
struct Copy {
  bool waits = false;    // For it, before a push is acknowledged.
  uint64_t stream = 0;   // The token of the process that has all and gets all; 0: none does.
  Incarnation life = 0;  // Of the server.
  uint64_t epoch = 0;    // Of the map, when the coordinator took that it is in sync; 0: it has not.
};

// A ps while it runs, as far as replication goes.
struct Process {
  bool running = false;
  uint64_t token = 0;         // Names this run of the process.
  uint64_t predecessor = 0;   // The one before, in the same folder.
  std::optional<bool> whole;  // As its Join says.
  Incarnation life = 0;
  uint64_t reports = 0;
  std::optional<ShardMap> map;                                        // The newest that it has heard of.
  std::array<std::array<Copy, kServersMax>, kRandomShards> copies{};  // As the owner, by server.
  std::array<uint64_t, kRandomShards>
      follows{};  // As the follower, or a learner: the token of the owner that it listens to.
  std::array<uint64_t, kRandomShards> gives_up{};  // As the owner: the number by which it answers no more; 0: it does.
};

// What a server keeps over the ends of its processes.
struct Disk {
  std::array<Pushes, kRandomShards> shards;
  uint64_t folder = 0;
  uint64_t token = 0;       // Of the last process.
  uint64_t generation = 0;  // Processes that have begun to write there.
  bool fresh = true;        // No process has written there.
  bool whole = true;        // The machine has not gone down since one began to, and what it had before is there.
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
    reported_ = {};
    for (ShardId shard = 0; shard < kRandomShards; ++shard)
      equal_before_[shard] = members_->shards().equal().HolderOf(shard);
    const bool same_coordinator = Operate();
    CheckChange(before, same_coordinator);
    CheckNothingIsLost();
    CheckOneServes();
  }

  // With everybody alive and nothing lost on the way, all is in sync again, all planned moves end, and a server that
  // drains holds nothing.
  void Heal() {
    lossy_ = false;
    for (int round = 0; round < 100 && replicas_now_ != replicas_; ++round) {
      for (uint32_t server = 0; server < servers_; ++server) {
        if (!processes_[server].running) StartProcess(server);
      }
      StartHoldersOfLost();
      SyncAll();
      RestartCoordinator();
    }
    ASSERT_EQ(replicas_now_, replicas_);
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
    StartHoldersOfLost();
    SyncAll();
    EXPECT_TRUE(members_->shards().Route().ok());
    const bool drains = servers_ > replicas_;
    v1::DrainRequest request;
    request.set_server(0);
    ASSERT_EQ(members_->Drain(request).ok(), drains);
    for (uint32_t round = 0; round < 12 * kRandomShards; ++round) SyncAll();  // Copied, and given up.
    EXPECT_EQ(members_->Status().shards_in_sync(), replicas_ == 1 ? 0 : kRandomShards);
    EXPECT_EQ(members_->Status().moves_size(), 0) << members_->Status().DebugString();
    EXPECT_FALSE(members_->shards().HasLearners());
    for (ShardId shard = 0; drains && shard < kRandomShards; ++shard) {
      EXPECT_NE(members_->shards().owners()[shard], 0);
      EXPECT_FALSE(members_->shards().copies().Follows(0, shard));
    }
  }

  void SyncAll() {
    for (uint32_t server = 0; server < servers_; ++server) Beat(server);
    for (uint32_t server = 0; server < servers_; ++server) {
      for (ShardId shard = 0; shard < kRandomShards; ++shard) {
        for (uint32_t to = 0; to < servers_; ++to) {
          if (!Owns(server, shard) || to == server) continue;
          // One that does not confirm what is given up is late, as any other.
          if (processes_[server].gives_up[shard] == 0 || processes_[server].copies[shard][to].stream == 0) {
            Report(server, shard, to, false);
            if (Owns(server, shard)) Bootstrap(server, shard, to);
          }
          Report(server, shard, to, true);
        }
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
    options.shards = kRandomShards;
    options.replicas = replicas_now_;
    options.lease_ms = kLeaseMs;
    options.time = &time_;
    return options;
  }

  // One that has lost its lease and joined again has no equal copy before it is started again.
  void StartHoldersOfLost() {
    for (ShardId shard = 0; shard < kRandomShards; ++shard) {
      if (members_->shards().lost().IsLost(shard)) StartProcess(members_->shards().equal().HolderOf(shard) - 1);
    }
  }

  // False if the coordinator is another one now.
  bool Operate() {
    const uint32_t server = Draw(servers_);
    const ShardId shard = Draw(kRandomShards);
    Process& process = processes_[server];
    const uint32_t what = Draw(1000);
    if (what < 450) {
      Push(server, shard);
    } else if (what < 600) {
      Beat(server);
    } else if (what < 750) {
      const ShardId followed = FollowedFrom(server, shard);
      for (uint32_t to = 0; to < servers_; ++to) {
        if (Owns(server, followed) && Draw(4) > 0) Bootstrap(server, followed, to);
        if (Draw(4) > 0) Report(server, followed, to, true);
      }
    } else if (what < 780) {
      Report(server, shard, Draw(servers_), false);
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
    request.add_shards(Draw(kRandomShards));
    request.set_server(server);
    request.set_cancel(what == 2);
    request.set_level(what == 3);
    plans_ += members_->Move(request).ok();
  }

  void StartProcess(uint32_t server) {
    Process& process = processes_[server];
    process = Process();
    process.running = true;
    if (Draw(4) == 0) disks_[server].token = ++tokens_;  // A start before this one never got as far as to join.
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
    request.set_shards(kRandomShards);
    request.set_token(process.token);
    request.set_predecessor(process.predecessor);
    request.mutable_data()->set_folder(disks_[server].folder);
    request.mutable_data()->set_generation(disks_[server].generation);
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
    if (process.map.has_value()) request.set_generation(disks_[server].generation);
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
    for (ShardId shard = 0; shard < kRandomShards; ++shard) {
      if (map.OwnerOf(shard) != server || (process.map.has_value() && process.map->OwnerOf(shard) == server)) continue;
      EXPECT_TRUE(HasAll(server, shard)) << "it begins to serve shard " << shard;
    }
    disks_[server].whole = true;  // It writes from now on.
    if (!process.map.has_value()) ++disks_[server].generation;
    disks_[server].fresh = false;
    for (ShardId shard = 0; shard < kRandomShards; ++shard) {
      const bool owned = Owns(server, shard) && process.map->TermOf(shard) == map.TermOf(shard);
      if (map.OwnerOf(shard) != server || !owned) {
        process.copies[shard] = {};
      }
      for (uint32_t to = 0; to < servers_; ++to) {
        Copy& copy = process.copies[shard][to];
        if (copy.epoch > 0 && map.epoch() > copy.epoch && !map.InSync(shard, to)) copy = Copy();
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
  // The next shard of the server, from `shard` on, that has a follower, mostly; `shard` if there is none.
  ShardId FollowedFrom(uint32_t server, ShardId shard) {
    for (ShardId i = 0; i < kRandomShards; ++i) {
      const ShardId next = (shard + i) % kRandomShards;
      if (Owns(server, next) && processes_[server].map->FollowerOf(next).has_value() && Draw(3) > 0) return next;
    }
    return shard;
  }
  bool Listens(uint32_t server, uint32_t owner, ShardId shard) const {
    const Process& process = processes_[server];
    return process.running && process.map.has_value() && process.map->IsFollowedBy(shard, server) &&
           process.map->OwnerOf(shard) == owner;
  }
  // A follower or a learner gets the owner's state; from now on the owner waits for it.
  void Bootstrap(uint32_t owner, ShardId shard, uint32_t to) {
    Process& process = processes_[owner];
    Copy& copy = process.copies[shard][to];
    if (copy.waits || !process.map->IsFollowedBy(shard, to) || !Listens(to, owner, shard)) return;
    disks_[to].shards[shard] = disks_[owner].shards[shard];
    processes_[to].follows[shard] = process.token;
    copy = {.waits = true, .stream = processes_[to].token, .life = processes_[to].life};
  }
  // Whether a push reaches the one at the other end of a stream, which breaks otherwise.
  bool Send(uint32_t owner, uint32_t to, ShardId shard, size_t push, uint64_t* stream) {
    if (*stream == 0) return false;
    const bool arrives = processes_[to].running && processes_[to].token == *stream &&
                         processes_[to].follows[shard] == processes_[owner].token && !(lossy_ && Draw(30) == 0);
    if (arrives) disks_[to].shards[shard].set(push);
    if (!arrives) *stream = 0;
    return arrives;
  }

  void Push(uint32_t owner, ShardId shard) {
    if (!Serves(owner, shard) || pushed_[shard] == kPushesMax) return;
    Process& process = processes_[owner];
    const size_t push = pushed_[shard]++;
    disks_[owner].shards[shard].set(push);
    bool held = true;
    for (uint32_t to = 0; to < servers_; ++to) {
      Copy& copy = process.copies[shard][to];
      if (!Send(owner, to, shard, push, &copy.stream) && copy.waits) held = false;
    }
    if (!held) return;
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
    const bool late = lossy_ && Draw(6) == 0;
    if (late) delayed_.push_back(request);
    if (late || (lossy_ && Draw(10) == 0)) return std::nullopt;
    const auto told = Deliver(request);
    if (!told.ok() || (lossy_ && Draw(10) == 0)) return std::nullopt;
    return *told;
  }
  void Report(uint32_t owner, ShardId shard, uint32_t to, bool in_sync) {
    if (!Owns(owner, shard)) return;
    Process& process = processes_[owner];
    Copy& copy = process.copies[shard][to];
    const bool is_there = processes_[to].running && copy.stream != 0 && processes_[to].token == copy.stream;
    if (!copy.waits || (in_sync && !is_there)) return;
    const uint64_t gives_up = in_sync && process.map->FollowerOf(shard) == to ? process.gives_up[shard] : 0;
    const auto told = Tell(owner, shard, copy.life, in_sync, gives_up);
    if (!told.has_value()) return;
    if (told->accepted(0)) {
      learnt_ += in_sync && copy.epoch == 0 && process.map->LearnerOf(shard) == to;
      if (!in_sync) {
        copy = Copy();
      } else if (gives_up == 0) {
        copy.epoch = told->route_epoch();
      }
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
    for (const MemberPlace& place : members_->members().servers()) {
      if (report.in_sync() && place.incarnation == report.follower()) reported_[report.shard()].set(place.index);
    }
    return told;
  }

  bool HasAll(uint32_t server, ShardId shard) const { return (acked_[shard] & ~disks_[server].shards[shard]).none(); }

  // The machine of a server goes down, with the end of its log, if each shard of which it has all is whole elsewhere
  // too, as the coordinator knows: at a server in sync, or that was so when both ended, or at the owner.
  void CutPower(uint32_t server) {
    if (replicas_ == 1) return;  // What a machine that went down lacks is nowhere else.
    const v1::CoordinatorState state = members_->SaveState();
    if (state.owners().empty()) return;
    for (ShardId shard = 0; shard < kRandomShards; ++shard) {
      if (UndecidedIn(state, shard)) return;
      std::vector<uint32_t> others = {state.owners(shard)};
      if (state.owners(shard) == server) {
        const uint32_t equal = members_->shards().equal().HolderOf(shard);
        others = InSyncIn(state, shard);
        if (others.empty() && equal > 0) others = {equal - 1};
      }
      // Whichever of them is chosen.
      const auto is_whole = [&](uint32_t other) { return disks_[other].whole && HasAll(other, shard); };
      if (others.empty() || !std::all_of(others.begin(), others.end(), is_whole)) return;
    }
    // Nor was it just letting a follower go, by a report that is still under way: nobody can tell whether it came to
    // know that it may go on alone.
    std::erase_if(delayed_, [life = processes_[server].life](const v1::ReportSyncRequest& request) {
      return request.incarnation() == life && request.reports(0).gives_up() == 0;
    });
    processes_[server].running = false;
    Disk& disk = disks_[server];
    disk.whole = false;
    for (ShardId shard = 0; shard < kRandomShards; ++shard) {
      for (uint32_t i = Draw(20); i > 0 && pushed_[shard] >= i; --i) disk.shards[shard].reset(pushed_[shard] - i);
    }
    ++power_cuts_;
    // Another process may end at the same moment.
    if (Draw(2) == 0) processes_[Draw(servers_)].running = false;
  }

  // Server 0 ends with it. What was sent to the former one is lost.
  void RestartCoordinator() {
    const v1::CoordinatorState state = members_->SaveState();
    if (replicas_ == 3) replicas_now_ = 2 + Draw(2);
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
    for (ShardId shard = 0; shard < kRandomShards; ++shard) {
      // It may be the only whole one: the owner's machine went down.
      if (!disks_[state.owners(shard)].whole && state.owners(shard) != server && HasAll(server, shard)) return true;
      if (state.owners(shard) != server) continue;
      const std::vector<uint32_t> in_sync = InSyncIn(state, shard);
      const auto lives = [&](uint32_t other) {
        return processes_[other].running && members_->members().CheckAlive(processes_[other].life).ok();
      };
      if (in_sync.empty() || !std::all_of(in_sync.begin(), in_sync.end(), lives)) return true;
    }
    const bool restart = state.followers_size() > 0 && Draw(3) == 0 && AllElseOfZeroIsInSync(state, server);
    processes_[server].running = false;
    disks_[server] = Disk();
    disks_[server].whole = false;
    ++losses_;
    if (restart) RestartCoordinator();
    if (Draw(2) == 0) {
      StartProcess(server);
      if (restart && Draw(2) == 0) RestartCoordinator();
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
    for (ShardId shard = 0; shard < kRandomShards; ++shard) {
      if (state.owners(shard) == server && InSyncIn(state, shard) == std::vector<uint32_t>{0}) return false;
    }
    return true;
  }

  // Of a saved state, which has no followers where there are none: those of a shard, and those of them in sync.
  static std::set<uint32_t> FollowersIn(const v1::CoordinatorState& state, ShardId shard) {
    std::set<uint32_t> servers;
    for (const auto* list : {&state.followers(), &state.second_followers()}) {
      if (!list->empty() && (*list)[static_cast<int>(shard)] > 0) servers.insert((*list)[static_cast<int>(shard)] - 1);
    }
    return servers;
  }
  static std::vector<uint32_t> InSyncIn(const v1::CoordinatorState& state, ShardId shard) {
    std::vector<uint32_t> servers;
    const int i = static_cast<int>(shard);
    if (!state.in_sync().empty() && state.in_sync(i)) servers.push_back(state.followers(i) - 1);
    if (!state.second_in_sync().empty() && state.second_in_sync(i)) servers.push_back(state.second_followers(i) - 1);
    return servers;
  }
  static bool Has(const std::vector<uint32_t>& servers, uint32_t server) {
    return std::find(servers.begin(), servers.end(), server) != servers.end();
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
    for (ShardId shard = 0; shard < kRandomShards; ++shard) {
      const uint32_t owner = before.owners(shard), next = after.owners(shard);
      map_changed = map_changed || owner != next || FollowersIn(before, shard) != FollowersIn(after, shard);
      ASSERT_FALSE(FollowersIn(after, shard).contains(next)) << "nobody follows itself";
      ASSERT_TRUE(!InSyncIn(after, shard).empty() || after.second_in_sync().empty() || !after.second_in_sync(shard));
      if (owner == next) {
        if (TermIn(after, shard) != TermIn(before, shard)) {
          ASSERT_GT(TermIn(after, shard), before.epoch()) << "its owner was started again";
          ASSERT_LE(TermIn(after, shard), after.epoch());
        }
        for (const uint32_t server : InSyncIn(after, shard)) {
          ASSERT_TRUE(Has(InSyncIn(before, shard), server) || reported_[shard][server]);
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
      ASSERT_TRUE(Has(InSyncIn(before, shard), next) || reported_[shard][next] || was_equal);
    }
    if (map_changed) {
      ASSERT_GT(after.epoch(), before.epoch());
    }
  }

  // Without replicas, also while a shard moves, and an owner whose life has ended for the coordinator may serve still.
  // With them, leases are for that.
  void CheckOneServes() {
    for (ShardId shard = 0; replicas_ == 1 && shard < kRandomShards; ++shard) {
      uint32_t serve = 0;
      for (uint32_t server = 0; server < servers_; ++server) serve += Serves(server, shard);
      ASSERT_LE(serve, 1) << "shard " << shard;
    }
  }

  void CheckNothingIsLost() {
    const v1::CoordinatorState state = members_->SaveState();
    for (ShardId shard = 0; shard < static_cast<ShardId>(state.owners_size()); ++shard) {
      for (const uint32_t server : InSyncIn(state, shard)) {
        // Until it is known that its machine went down.
        ASSERT_TRUE(!disks_[server].whole || HasAll(server, shard)) << "shard " << shard << " at ps " << server;
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
  uint32_t replicas_now_ = replicas_;  // The coordinator's: 2 now and then, where there are to be 3.
  ManualTime time_;
  std::unique_ptr<Membership> members_;
  std::vector<Process> processes_;
  std::vector<Disk> disks_;
  std::array<Pushes, kRandomShards> acked_;
  std::array<size_t, kRandomShards> pushed_{};
  std::array<std::bitset<kServersMax>, kRandomShards> reported_;  // In sync, in this step, by server.
  std::array<uint32_t, kRandomShards> equal_before_{};
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
    Cluster cluster(seed, std::max<uint32_t>(2, replicas) + seed % 3, replicas);
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

TEST(FailoverRandom, WithThreeCopiesWhoIsToOwnAShardHasAllThatWasAcknowledged) {
  const Sums sums = RunSeeds(/*replicas=*/3);
  EXPECT_GT(sums.acknowledged, 10'000);
  EXPECT_GT(sums.failovers, 500);
  EXPECT_GT(sums.losses, 100);
  EXPECT_GT(sums.power_cuts, 100);
  EXPECT_GT(sums.returns, 10);
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
