#include "tests/chaos/report.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/chaos/progress.h"

namespace lodestone::chaos {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Report GoodReport() {
  Report report;
  report.seed = 7;
  report.recoveries_ms[FaultKind::kKill] = {100, 900, 200};
  report.impossible[FaultKind::kTear] = 1;
  report.acknowledged = 1000;
  report.audits = 2;
  report.calm_pushes_per_second = 400;
  report.stormy_pushes_per_second = 100;
  return report;
}

TEST(Report, TellsRecoveriesByFaultAndGoodputBesideThatWithoutFaults) {
  const std::string table = ToTable(GoodReport());
  EXPECT_THAT(table, testing::ContainsRegex("kill +3 +0.200 +0.900\n"));
  EXPECT_THAT(table, testing::ContainsRegex("tear +0 .*1 that were not possible"));
  EXPECT_THAT(table, HasSubstr("(25 %)"));
  const auto json = nlohmann::json::parse(ToJson(GoodReport()));
  EXPECT_EQ(json["faults"]["kill"]["recovery_ms_max"], 900);
  EXPECT_EQ(json["goodput_share"], 0.25);
  EXPECT_EQ(json["ok"], true);
  EXPECT_FALSE(json.contains("goodput"));
}

TEST(Report, TellsWhatFaultsBySecondsCost) {
  Report report = GoodReport();
  report.goodput_every_seconds = 15;
  report.goodput = {{.goodput = 0.9, .lost_in_recovery = 0.06, .lost_after = 0.04},
                    {.goodput = 0.96, .lost_in_recovery = 0.02, .lost_after = 0.02},
                    {.goodput = 0.95, .lost_in_recovery = 0.05, .lost_after = 0}};
  EXPECT_THAT(ToTable(report),
              HasSubstr("goodput              0.950 (0.900-0.960) of the rate without faults, 3 faults "
                        "at 15 s; recovery took 0.050 (0.020-0.060), work "
                        "after it 0.020 (0.000-0.040)\n"));
  EXPECT_EQ(nlohmann::json::parse(ToJson(report))["goodput"]["share_median"], 0.95);
}

TEST(Report, IsOkOnlyIfNothingIsLostDoubledOrWrongAndSomethingWasCompared) {
  EXPECT_TRUE(GoodReport().ok());
  EXPECT_EQ(GoodReport().faults(), 3);
  for (uint64_t Verdict::*mistake : {&Verdict::lost, &Verdict::doubled, &Verdict::wrong}) {
    Report report = GoodReport();
    report.verdict.*mistake = 1;
    EXPECT_FALSE(report.ok());
  }
  Report report = GoodReport();
  report.failure = "ps 1 ended";
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(ToTable(report), HasSubstr("failed: ps 1 ended"));
  report = GoodReport();
  report.audits = 0;
  EXPECT_FALSE(report.ok());
}

TEST(Report, TellsFailoversBesideTheirBoundAndFailsIfAFollowerDiffers) {
  Report report = GoodReport();
  EXPECT_THAT(ToTable(report), testing::Not(HasSubstr("failover")));
  report.replicas = true;
  report.lease_ms = 1000;
  report.outages_ms[FaultKind::kLose] = {1100, 1300, 2600};
  report.replicas_same = 16;
  EXPECT_TRUE(report.ok());
  EXPECT_THAT(ToTable(report), HasSubstr("3: median 1.300 s, longest 2.600 s; bound 2.500 s, beyond it 1"));
  EXPECT_EQ(nlohmann::json::parse(ToJson(report))["failovers"]["lose"]["outage_ms_max"], 2600);
  report.replicas_differ = 1;
  EXPECT_FALSE(report.ok());
  EXPECT_THAT(ToTable(report), HasSubstr("17 compared with their owners' shards, 1 differed"));
}

TEST(Report, TellsWhatWasTrainedIfThereWereWorkers) {
  Report report = GoodReport();
  EXPECT_THAT(ToTable(report), testing::Not(HasSubstr("trained")));
  report.turnover = {.runs = 2,
                     .joined = 9,
                     .left = 3,
                     .killed = 4,
                     .again = 5,
                     .orders = 6,
                     .operators_killed = 7,
                     .operators_stopped = 8};
  EXPECT_THAT(ToTable(report),
              HasSubstr("20 epochs in 2 runs, each sample once in each; 9 workers joined, 3 left, 4 "
                        "were killed, 5 ranges were given again; the order of steps changed 6 times, 7 "
                        "operators were killed and 8 stopped in the middle"));
  EXPECT_EQ(nlohmann::json::parse(ToJson(report))["workers"]["epochs"], 20);
}

TEST(Progress, SeesAShardAgainWhenWhatWasSentAfterwardsIsAcknowledged) {
  Progress progress;
  const int64_t before_ms = progress.NowMs() - 1;
  progress.Watch({0, 1});
  EXPECT_EQ(progress.seen_ms(), std::nullopt);
  progress.Acknowledged({0, 1}, before_ms);
  EXPECT_THAT(progress.missing(), ElementsAre(0, 1));
  progress.Acknowledged({1}, progress.NowMs());
  EXPECT_THAT(progress.missing(), ElementsAre(0));
  progress.Acknowledged({0, 2}, progress.NowMs());
  EXPECT_TRUE(progress.seen_ms().has_value());
  EXPECT_EQ(progress.acknowledged(), 3);
  EXPECT_EQ(progress.seen_pushes(), 3);
  progress.Acknowledged({0}, progress.NowMs());
  EXPECT_EQ(progress.seen_pushes(), 3);
}

TEST(Progress, MeasuresAnOutageFromTheLastAcknowledgementBeforeIt) {
  Progress progress;
  progress.Watch({3});
  progress.Acknowledged({3}, progress.NowMs());
  EXPECT_EQ(progress.outage_ms(), std::nullopt) << "there was none before";
  const int64_t last_ms = progress.NowMs();
  progress.Acknowledged({3, 4}, last_ms);
  progress.Watch({3});
  EXPECT_EQ(progress.outage_ms(), std::nullopt);
  progress.Acknowledged({4}, progress.NowMs());
  EXPECT_EQ(progress.outage_ms(), std::nullopt);
  progress.Acknowledged({3}, progress.NowMs());
  ASSERT_TRUE(progress.outage_ms().has_value());
  EXPECT_LE(*progress.outage_ms(), *progress.seen_ms() - last_ms);
  EXPECT_GE(*progress.outage_ms(), 0);
}

}  // namespace
}  // namespace lodestone::chaos
