#include "common/telemetry/metrics.h"

#include <fcntl.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "common/http/monitoring.h"
#include "common/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/telemetry/metric_text.h"
#include "tests/configs/deployment.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr auto kCounter = MetricFamilies::Type::kCounter;
constexpr auto kGauge = MetricFamilies::Type::kGauge;

CounterMetric eaten("test_apples_total", "Apples eaten.");
CounterMetric late("test_late_total", "Counted while others are added.");
HistogramMetric red("test_apple_duration_seconds", "Eating an apple.", {{"kind", "red"}});
HistogramMetric green("test_apple_duration_seconds", "Eating an apple.", {{"kind", "green"}});

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// What promtool says of a text; empty: nothing.
std::string Promtool(const std::string& text) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/metrics.txt";
  std::ofstream(path) << text;
  int exit_code = 0;
  const std::string said = RunShell("promtool check metrics < " + path, &exit_code);
  return exit_code == 0 ? said : said + " (exit code " + std::to_string(exit_code) + ")";
}

TEST(Metrics, AVariableIsThereWithItsNameAlone) {
  eaten.Add(3);
  EXPECT_EQ(MetricText::Now().Of("test_apples_total"), 3);
  EXPECT_EQ(eaten.value(), 3u);
}

TEST(Metrics, HistogramsOfOneNameAreOneFamily) {
  red.ObserveNs(20'000);
  red.ObserveNs(200'000'000'000);
  green.ObserveNs(1'000'000'000);
  MetricFamilies families;
  families.AddVariables();
  const std::string text = families.Text();
  EXPECT_EQ(Count(text, "# HELP test_apple_duration_seconds Eating an apple.\n"), 1u);
  EXPECT_EQ(Count(text, "# TYPE test_apple_duration_seconds histogram\n"), 1u);
  const MetricText read(text);
  EXPECT_EQ(read.Of("test_apple_duration_seconds_bucket{kind=\"red\",le=\"1e-05\"}"), 0);
  EXPECT_EQ(read.Of("test_apple_duration_seconds_bucket{kind=\"red\",le=\"2.5e-05\"}"), 1);
  EXPECT_EQ(read.Of("test_apple_duration_seconds_bucket{kind=\"red\",le=\"100\"}"), 1);
  EXPECT_EQ(read.Of("test_apple_duration_seconds_bucket{kind=\"red\",le=\"+Inf\"}"), 2);
  EXPECT_EQ(read.Of("test_apple_duration_seconds_count{kind=\"red\"}"), 2);
  EXPECT_DOUBLE_EQ(read.Of("test_apple_duration_seconds_sum{kind=\"red\"}"), 200.00002);
  EXPECT_EQ(read.Of("test_apple_duration_seconds_count{kind=\"green\"}"), 1);
}

TEST(Metrics, ValuesOfOneNameAreOneFamilyAndLabelsMayHoldAnything) {
  MetricFamilies families;
  families.Add("test_size_bytes", "Sizes.", kGauge, 1e17, {{"table", "a\"b\\c\nd"}});
  families.Add("test_other", "Something else.", kGauge, -0.5);
  families.Add("test_size_bytes", "Sizes.", kGauge, 7, {{"table", "e"}, {"codec", "f32"}});
  families.Add("test_total", "Counted.", kCounter, 4049);
  EXPECT_EQ(families.Text(),
            "# HELP test_size_bytes Sizes.\n# TYPE test_size_bytes gauge\n"
            "test_size_bytes{table=\"a\\\"b\\\\c\\nd\"} 1e+17\n"
            "test_size_bytes{table=\"e\",codec=\"f32\"} 7\n"
            "# HELP test_other Something else.\n# TYPE test_other gauge\ntest_other -0.5\n"
            "# HELP test_total Counted.\n# TYPE test_total counter\ntest_total 4049\n");
}

TEST(Metrics, TheProcessIsDescribed) {
  const auto read = [] {
    MetricFamilies families;
    families.AddProcess();
    return MetricText(families.Text());
  };
  const MetricText before = read();
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_GT(before.Of("process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(before.Of("process_virtual_memory_bytes"), before.Of("process_resident_memory_bytes"));
  EXPECT_GT(before.Of("process_max_fds"), 0);
  // The system counts both in hundredths of a second or so, and its start in whole ones.
  EXPECT_LT(before.Of("process_start_time_seconds"), now + 2);
  EXPECT_GT(before.Of("process_start_time_seconds"), now - 3600);
  const auto file = File::Open("/dev/null", O_RDONLY);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(read().Of("process_open_fds"), before.Of("process_open_fds") + 1);
  while (read().Of("process_cpu_seconds_total") <= before.Of("process_cpu_seconds_total")) {
  }
}

TEST(Metrics, PromtoolTakesThem) {
  if (!HasProgram("promtool")) GTEST_SKIP() << "promtool is not here";
  MetricFamilies families;
  families.AddProcess();
  families.AddVariables();
  EXPECT_EQ(Promtool(families.Text()), "");
  MetricFamilies wrong;
  wrong.Add("test_milliseconds", "", kCounter, 1);
  EXPECT_THAT(Promtool(wrong.Text()), HasSubstr("test_milliseconds"));
}

TEST(Monitoring, ServesMetricsAndProbes) {
  absl::Status ready = absl::UnavailableError("it waits for ps 1");
  const HttpServer::Paths paths =
      MonitoringPaths([](MetricFamilies* to) { to->Add("test_added", "Added.", kGauge, 1); }, [&] { return ready; });
  const HttpResponse metrics = paths.at("/metrics")({});
  EXPECT_EQ(metrics.code, 200);
  EXPECT_THAT(metrics.content_type, StartsWith("text/plain; version=0.0.4"));
  const MetricText text(metrics.body);
  for (const char* name : {"test_added", "test_apples_total", "process_cpu_seconds_total"}) EXPECT_TRUE(text.Has(name));
  EXPECT_EQ(text.Of(absl::StrCat("lodestone_build_info{version=\"", kVersion, "\"}")), 1);
  EXPECT_EQ(paths.at("/healthz")({}).code, 200);
  EXPECT_EQ(paths.at("/readyz")({}).code, 503);
  EXPECT_EQ(paths.at("/readyz")({}).body, "not ready: it waits for ps 1\n");
  ready = absl::OkStatus();
  EXPECT_EQ(paths.at("/readyz")({}).code, 200);
  EXPECT_EQ(paths.at("/healthz")({}).code, 200);
}

TEST(Monitoring, WhatIsCountedWhileOthersAreAddedIsThere) {
  const HttpServer::Paths paths =
      MonitoringPaths([](MetricFamilies*) { late.Add(1); }, [] { return absl::OkStatus(); });
  for (int times = 1; times <= 3; ++times) {
    EXPECT_EQ(MetricText(paths.at("/metrics")({}).body).Of("test_late_total"), times);
  }
}

}  // namespace
}  // namespace lodestone
