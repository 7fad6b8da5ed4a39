#include "tools/bench/harness/cost_model.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::bench {
namespace {

using testing::HasSubstr;

TEST(FitCost, FindsTheCostsThatMadeThePoints) {
  const Cost truth{20e-6, 0.3e-9, 0};
  std::vector<CostPoint> points;
  for (const double bytes : {4096.0, 65536.0, 1048576.0, 4194304.0}) {
    points.push_back({MessagesOf(bytes), bytes, truth.Of(MessagesOf(bytes), bytes, 0)});
  }
  const Cost cost = FitCost(points);
  // The normal equations lose about the square of the columns' condition (1e3) to the double's 1e-16.
  EXPECT_NEAR(cost.per_message / truth.per_message, 1, 1e-9);
  EXPECT_NEAR(cost.per_byte / truth.per_byte, 1, 1e-9);
}

TEST(FitCost, FindsNoCostBelowZero) {
  const Cost falling = FitCost({{1, 1e3, 2e-3}, {1, 1e6, 1e-3}});
  EXPECT_EQ(falling.per_byte, 0);
  EXPECT_GT(falling.per_message, 0);
  const Cost steep = FitCost({{1, 1e3, 1e-7}, {1, 1e6, 1e-3}});
  EXPECT_EQ(steep.per_message, 0);
  EXPECT_GT(steep.per_byte, 0);
}

TEST(MessagesOf, CutsAtTwoMebibytes) {
  EXPECT_EQ(MessagesOf(0), 1);
  EXPECT_EQ(MessagesOf(2 << 20), 1);
  EXPECT_EQ(MessagesOf((2 << 20) + 1), 2);
  EXPECT_EQ(MessagesOf(64 << 20), 32);
}

// Rows as `dense` and `embedding` write them, of operations with known costs.
Report Measured(const Cost& push, const Cost& pull) {
  Report report;
  const auto add = [&](const std::string& name, double client_seconds, double amount) {
    Row row{.bench = "dense", .name = name, .unit = "GB/s", .cpu_unit = "s/GB", .runs = 1, .values = {}};
    row.values[kClientCpu] = {client_seconds / amount, 0, 0};
    row.values[kServerCpu] = {2 * client_seconds / amount, 0, 0};  // The server takes twice as much.
    report.rows.push_back(row);
  };
  for (const double bytes : {4096.0, 65536.0, 1048576.0, 4194304.0}) {
    const std::string size = SizeText(static_cast<uint64_t>(bytes));
    add(absl::StrCat("dense/push/", size, "/depth8/clients1"), push.Of(MessagesOf(bytes), bytes, 0), 1e-9 * bytes);
    add(absl::StrCat("dense/pull/", size, "/depth8/clients1"), pull.Of(MessagesOf(bytes), bytes, 0), 1e-9 * bytes);
  }
  const double bytes = 4096 * (8 + 64);
  add("embedding/push/1000Krows/dim16/depth4", push.Of(1, bytes, 4096), 1e-6 * 4096);
  add("embedding/pull/1000Krows/dim16/depth4", pull.Of(1, bytes, 4096), 1e-6 * 4096);
  add("dense/push-pull/64KiB/depth8/clients1", push.Of(1, 65536, 0) + pull.Of(1, 65536, 0), 2e-9 * 65536);
  return report;
}

constexpr Cost kPush{20e-6, 0.3e-9, 50e-9};
constexpr Cost kPull{10e-6, 0.2e-9, 30e-9};

TEST(FitCostModel, FindsBothSidesCostsIncludingThoseOfKeys) {
  const absl::StatusOr<CostModel> model = FitCostModel(Measured(kPush, kPull));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_NEAR(model->push_client.per_byte / kPush.per_byte, 1, 1e-9);
  EXPECT_NEAR(model->push_server.per_message / (2 * kPush.per_message), 1, 1e-9);
  EXPECT_NEAR(model->pull_client.per_key / kPull.per_key, 1, 1e-9);
  EXPECT_NEAR(model->pull_server.per_key / (2 * kPull.per_key), 1, 1e-9);
}

TEST(FitCostModel, SaysWhichRowsItNeeds) {
  Report report;
  report.rows.push_back(Measured(kPush, kPull).rows[0]);
  EXPECT_THAT(FitCostModel(report).status().message(), HasSubstr("dense/push/{4KiB,64KiB,1MiB,4MiB}/depth8/clients1"));
}

TEST(Predict, DividesLinksAndCoresAmongWorkersAndServers) {
  const CostModel model{{.per_byte = 1e-9}, {.per_byte = 2e-9}, {.per_byte = 3e-9}, {.per_byte = 4e-9}};
  const Scenario scenario{
      .name = "x", .workers = 100, .servers = 20, .link_bytes_per_second = 1e10, .cores = 10, .dense_bytes = 1e8};
  const Prediction prediction = Predict(model, scenario);
  ASSERT_EQ(prediction.limits.size(), 4);
  // A server gets 100 workers * 5 MB = 500 MB a step and spends (2 + 4) ns on each byte of push and pull.
  EXPECT_NEAR(prediction.limits[0].second, 20, 1e-9);
  EXPECT_NEAR(prediction.limits[1].second, 10 / (500e6 * 6e-9), 1e-9);
  EXPECT_NEAR(prediction.limits[2].second, 100, 1e-9);
  EXPECT_NEAR(prediction.limits[3].second, 10 / (100e6 * 4e-9), 1e-9);
  EXPECT_NEAR(prediction.server_memory_bytes, 100 * 4 * 5e6, 1);
}

TEST(ModelMarkdown, ChecksPointsThatWereNotFittedAndNamesThoseThatWereNotMeasured) {
  const absl::StatusOr<std::string> text = ModelMarkdown(Measured(kPush, kPull));
  ASSERT_TRUE(text.ok()) << text.status();
  // 3 * (20 + 10 + (0.3 + 0.2) * 65.536) us.
  EXPECT_THAT(*text, HasSubstr("| dense/push-pull/64KiB/depth8/clients1 | 188 | 188 | +0 % |"));
  EXPECT_THAT(*text, HasSubstr("| dense/push/1MiB/depth8/clients4 | not measured | 1004 | |"));
}

}  // namespace
}  // namespace lodestone::bench
