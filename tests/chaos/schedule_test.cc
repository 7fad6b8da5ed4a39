#include "tests/chaos/schedule.h"

#include <algorithm>
#include <map>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::chaos {
namespace {

ScheduleOptions AllKinds(uint64_t seed) {
  ScheduleOptions options{.seed = seed};
  for (const FaultInfo& info : FaultInfos()) options.kinds.push_back(info.kind);
  return options;
}

std::vector<std::string> Draw(const ScheduleOptions& options, uint64_t count) {
  std::vector<std::string> faults;
  for (uint64_t number = 0; number < count; ++number) faults.push_back(DrawFault(options, number).Describe());
  return faults;
}

TEST(Schedule, IsAFunctionOfItsSeed) {
  EXPECT_EQ(Draw(AllKinds(7), 100), Draw(AllKinds(7), 100));
  EXPECT_NE(Draw(AllKinds(7), 100), Draw(AllKinds(8), 100));
}

TEST(Schedule, HasEveryKindByItsShareBeforeAnyComesAgain) {
  const ScheduleOptions options = AllKinds(11);
  uint64_t round = 0;
  for (const FaultInfo& info : FaultInfos()) round += info.share;
  for (uint64_t first : {uint64_t{0}, 5 * round}) {
    std::map<FaultKind, int> seen;
    for (uint64_t i = 0; i < round; ++i) ++seen[DrawFault(options, first + i).kind];
    for (const FaultInfo& info : FaultInfos()) EXPECT_EQ(seen[info.kind], info.share) << info.name;
  }
}

TEST(Schedule, MeetsEveryServerButMovesOnlyThoseThatAreNotTheCoordinators) {
  ScheduleOptions options{.seed = 5, .kinds = {FaultKind::kKill}, .servers = 3};
  std::set<uint32_t> met;
  for (uint64_t i = 0; i < 100; ++i) met.insert(DrawFault(options, i).server);
  EXPECT_THAT(met, testing::ElementsAre(0, 1, 2));
  options.kinds = {FaultKind::kMove};
  met.clear();
  for (uint64_t i = 0; i < 100; ++i) met.insert(DrawFault(options, i).server);
  EXPECT_THAT(met, testing::ElementsAre(1, 2));
  options.kinds = {FaultKind::kLose, FaultKind::kKillInBootstrap, FaultKind::kDrain};
  met.clear();
  for (uint64_t i = 0; i < 100; ++i) met.insert(DrawFault(options, i).server);
  EXPECT_THAT(met, testing::ElementsAre(1, 2));
}

TEST(Schedule, PutsPartitionsBetweenAllPairsAndEveryPsAndTheClientsEitherWay) {
  const ScheduleOptions options{.seed = 5, .kinds = {FaultKind::kPartition}, .servers = 3};
  std::set<std::pair<uint32_t, uint32_t>> pairs;
  std::set<std::pair<bool, bool>> ways;
  for (uint64_t i = 0; i < 200; ++i) {
    const Fault fault = DrawFault(options, i);
    pairs.insert({fault.server, fault.peer});
    ways.insert({fault.holds_to_peer, fault.holds_from_peer});
    EXPECT_NE(fault.server, fault.peer);
  }
  EXPECT_EQ(pairs.size(), 3 * 3);
  EXPECT_THAT(ways, testing::ElementsAre(std::pair(false, true), std::pair(true, false), std::pair(true, true)));
}

TEST(Schedule, NeverKeepsClientsFromTheCoordinatorForALease) {
  const ScheduleOptions options{
      .seed = 5,
      .kinds = {FaultKind::kPartition, FaultKind::kStop, FaultKind::kHole, FaultKind::kZombie},
      .servers = 3,
      .lease_ms = 700};
  for (uint64_t i = 0; i < 400; ++i) {
    const Fault fault = DrawFault(options, i);
    const bool others = fault.kind == FaultKind::kPartition && fault.peer != kAllClients;
    if (fault.server == 0 && !others) {
      EXPECT_LE(fault.duration_ms, 350) << fault.Describe();
    }
  }
}

TEST(Schedule, StopsZombiesForLongerThanTheLease) {
  const ScheduleOptions options{.seed = 5, .kinds = {FaultKind::kZombie}, .lease_ms = 700};
  for (uint64_t i = 0; i < 100; ++i) EXPECT_GE(DrawFault(options, i).duration_ms, 700);
}

TEST(Schedule, KnowsFaultsByTheirNames) {
  const auto kinds = ParseFaults({"kill", "lose-reply"});
  ASSERT_TRUE(kinds.ok());
  EXPECT_THAT(*kinds, testing::ElementsAre(FaultKind::kKill, FaultKind::kLoseReply));
  EXPECT_THAT(ParseFaults({"kil"}).status().message(), testing::HasSubstr("kill-again"));
}

}  // namespace
}  // namespace lodestone::chaos
