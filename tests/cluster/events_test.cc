// What `psctl` tells of a cluster whose servers die: real ps, each shard with a follower.
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/chaos/ps_cluster.h"
#include "tests/cluster/psctl_run.h"

namespace lodestone {
namespace {

using chaos::PsCluster;
using testing::Contains;
using testing::HasSubstr;

constexpr uint32_t kTellingServers = 3;
constexpr uint32_t kShards = 16;

class ClusterEventsTest : public testing::Test {
 protected:
  void SetUp() override {
    PsCluster::Options options;
    options.ps_binary = ProjectFile("server/ps");
    // Of its own: what another test left would be recovered, with all shards on two servers.
    options.folder = TestFile(testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(options.folder);
    options.data_dir = absl::StrCat(options.folder, "/data");
    options.servers = kTellingServers;
    options.sets = {"cluster.replicas=2", "coordinator.lease_ms=2000"};
    auto cluster = PsCluster::Create(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    for (uint32_t server = 0; server < kTellingServers; ++server) Start(server);
    ASSERT_TRUE(Await([this] { return ShardsInSync() == kShards; }));
  }
  void Start(uint32_t server) {
    ASSERT_TRUE(cluster_->Start(server).ok());
    ASSERT_TRUE(Await([&] { return cluster_->Listens(server); }));
  }
  // Passes on what the ps say until `condition` holds; false if it never does.
  bool Await(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      cluster_->Pump(20);
    }
    return true;
  }
  uint32_t ShardsInSync() const {
    const auto status = cluster_->StatusOf(0, 1000);
    return status.ok() ? status->cluster().shards_in_sync() : 0;
  }
  // What psctl prints for `verb`, asked of `server`.
  nlohmann::json Psctl(const std::vector<std::string>& verb, uint32_t server) const {
    std::vector<std::string> arguments = verb;
    arguments.insert(arguments.end(),
                     {"--json", "--timeout", "60s", "--address", absl::StrCat("127.0.0.1:", cluster_->PortOf(server))});
    PsctlRun run(arguments);
    EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
    return nlohmann::json::parse(run.output(), nullptr, /*allow_exceptions=*/false);
  }
  // "died ps 1: last heard of 2.0 s ago" of each event, as that server tells them.
  std::vector<std::string> Events(uint32_t server) const {
    std::vector<std::string> events;
    for (const auto& event : Psctl({"events"}, server)) {
      events.push_back(absl::StrCat(event["kind"].get<std::string>(), " ", event["who"].get<std::string>(), ": ",
                                    event["text"].get<std::string>()));
    }
    return events;
  }
  bool AwaitEvent(const std::string& start, size_t count = 1) {
    return Await([&] {
      size_t found = 0;
      for (const std::string& event : Events(2)) found += absl::StartsWith(event, start);
      return found >= count;
    });
  }

  std::unique_ptr<PsCluster> cluster_;
};

TEST_F(ClusterEventsTest, APsThatIsKilledDiesItsShardsMoveAndItsNextLifeJoins) {
  for (uint32_t server = 0; server < kTellingServers; ++server) {
    EXPECT_THAT(Events(2), Contains(HasSubstr(absl::StrCat("joined ps ", server, ": "))));
  }
  cluster_->Kill(1);
  ASSERT_TRUE(AwaitEvent("died ps 1: "));
  ASSERT_TRUE(AwaitEvent("moved ps 1: shards "));
  std::vector<std::string> events = Events(2);
  const auto position = [&](const std::string& start) {
    size_t at = 0;
    while (at < events.size() && !absl::StartsWith(events[at], start)) ++at;
    return at;
  };
  EXPECT_LT(position("joined ps 1"), position("died ps 1"));
  EXPECT_LT(position("died ps 1"), position("moved ps 1"));
  const nlohmann::json top = Psctl({"top", "--count", "1"}, 2);
  for (const auto& server : top["cluster"]["servers"]) {
    EXPECT_EQ(server["alive"], server["index"] != 1) << server;
    EXPECT_EQ(server["shards_owned"] == 0, server["index"] == 1) << server;
  }
  EXPECT_EQ(Psctl({"tables"}, 2)["servers"], nlohmann::json({0, 2})) << "the dead one is not asked";
  Start(1);
  ASSERT_TRUE(AwaitEvent("joined ps 1: ", 2));
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(ClusterEventsTest, ACheckpointIsToldByEveryServerOnce) {
  Psctl({"checkpoint", "mine"}, 1);
  for (uint32_t server = 0; server < kTellingServers; ++server) {
    ASSERT_TRUE(AwaitEvent(absl::StrCat("checkpointed ps ", server, ": mine: ")));
  }
  size_t told = 0;
  for (const std::string& event : Events(1)) told += absl::StrContains(event, ": mine: ");
  EXPECT_EQ(told, kTellingServers);
}

TEST_F(ClusterEventsTest, FollowingTellsOfADeathAsItHappens) {
  PsctlRun follow(
      {"events", "--follow", "--timeout", "60s", "--address", absl::StrCat("127.0.0.1:", cluster_->PortOf(0))});
  ASSERT_TRUE(follow.WaitForOutput("joined        ps 2"));
  cluster_->Kill(1);
  ASSERT_TRUE(follow.WaitForOutput("died          ps 1"));
  ASSERT_TRUE(follow.WaitForOutput("moved         ps 1"));
}

}  // namespace
}  // namespace lodestone
