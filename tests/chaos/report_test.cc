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

TEST(Progress, SeesAServerAgainWhenItAcknowledgesWhatWasSentAfterwards) {
  Progress progress(2);
  const int64_t before_ms = progress.NowMs() - 1;
  progress.Watch({0, 1});
  EXPECT_EQ(progress.seen_ms(), std::nullopt);
  progress.Acknowledged({true, true}, before_ms);
  EXPECT_THAT(progress.missing(), ElementsAre(0, 1));
  progress.Acknowledged({false, true}, progress.NowMs());
  EXPECT_THAT(progress.missing(), ElementsAre(0));
  progress.Acknowledged({true, false}, progress.NowMs());
  EXPECT_TRUE(progress.seen_ms().has_value());
  EXPECT_EQ(progress.acknowledged(), 3);
}

}  // namespace
}  // namespace lodestone::chaos
