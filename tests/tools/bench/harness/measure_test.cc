#include "tools/bench/harness/measure.h"

#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::bench {
namespace {

using testing::DoubleEq;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pointee;
using testing::Pointwise;

Sample SampleOf(double operations, double client_cpu, double server_cpu, std::vector<float> latencies) {
  return {.seconds = 2,
          .operations = operations,
          .client_cpu_seconds = client_cpu,
          .server_cpu_seconds = server_cpu,
          .bytes_copied = 0,
          .latencies_us = std::move(latencies)};
}

TEST(MakeRow, DividesByTimeAndAmountAndByTheLimitsRunOfTheSameNumber) {
  std::vector<float> latencies(1000);
  std::iota(latencies.begin(), latencies.end(), 1.0f);
  const Scale scale = BytesScale(1'000'000);
  const Row row = MakeRow(
      "dense", "dense/x", scale,
      {SampleOf(1000, 0.5, 0.25, latencies), SampleOf(2000, 1, 1, latencies), SampleOf(3000, 1.5, 1.5, latencies)},
      {SampleOf(2000, 0.5, 0.5, {250}), SampleOf(2000, 0.5, 0.5, {250}), SampleOf(6000, 1.5, 1.5, {250})});
  EXPECT_EQ(row.unit, "GB/s");
  const auto has = [&](const char* metric, const std::vector<double>& values) {
    EXPECT_THAT(row.Find(metric), Pointee(Pointwise(DoubleEq(), values))) << metric;
  };
  has(kRate, {0.5, 1, 1.5});  // 1000, 2000 and 3000 MB in 2 s.
  has(kMessages, {0.5, 1, 1.5});
  has(kClientCpu, {0.5, 0.5, 0.5});
  has(kServerCpu, {0.25, 0.5, 0.5});
  has(kP50, {500, 500, 500});
  has(kP99, {990, 990, 990});
  has(kP999, {999, 999, 999});
  has(kLimitRate, {1, 1, 3});
  has(kRatio, {0.5, 1, 0.5});   // Run by run.
  has(kCpuRatio, {1.5, 2, 2});  // 0.75 / 0.5, 1 / 0.5, 1 / 0.5.
  has(kP50Ratio, {2, 2, 2});
  EXPECT_EQ(row.Find(kCopies), nullptr);
  EXPECT_EQ(row.Find(kP99Ratio), nullptr);  // One operation of the limit's makes up none.
}

TEST(MakeRow, DividesHighPercentilesWhereBothSidesHaveThem) {
  const Row row = MakeRow("x", "x", BytesScale(1), {SampleOf(100, 1, 1, std::vector<float>(100, 60.0f))},
                          {SampleOf(100, 1, 1, std::vector<float>(100, 20.0f))});
  EXPECT_THAT(row.Find(kLimitP99), Pointee(ElementsAre(DoubleEq(20))));
  EXPECT_THAT(row.Find(kP99Ratio), Pointee(ElementsAre(DoubleEq(3))));
}

TEST(MakeRow, TellsNoPercentileThatTooFewOperationsMakeUp) {
  const Row few = MakeRow("x", "x", BytesScale(1), {SampleOf(99, 1, 1, std::vector<float>(99, 5.0f))}, {});
  EXPECT_NE(few.Find(kP50), nullptr);
  EXPECT_EQ(few.Find(kP99), nullptr);
  const Row more = MakeRow("x", "x", BytesScale(1), {SampleOf(999, 1, 1, std::vector<float>(999, 5.0f))}, {});
  EXPECT_NE(more.Find(kP99), nullptr);
  EXPECT_EQ(more.Find(kP999), nullptr);
}

TEST(MakeRow, TellsCopiesPerPayloadByteWhereTheyAreCounted) {
  Sample sample = SampleOf(10, 1, 1, {});
  sample.bytes_copied = 1500;
  EXPECT_THAT(MakeRow("x", "x", BytesScale(100), {sample}, {}).Find(kCopies), Pointee(ElementsAre(DoubleEq(1.5))));
}

TEST(MeasureInTurns, LetsTheLimitGoFirstInEveryRun) {
  std::vector<char> turns;
  const auto measure = [&](char name) {
    return [&turns, name]() -> absl::StatusOr<Sample> {
      turns.push_back(name);
      return SampleOf(10, 1, 1, {});
    };
  };
  Options options;
  options.runs = 3;
  const absl::StatusOr<Row> row = MeasureInTurns(options, "x", "x", BytesScale(1), measure('o'), measure('l'));
  ASSERT_TRUE(row.ok()) << row.status();
  EXPECT_EQ(row->Find(kRate)->size(), 3);
  EXPECT_EQ(turns, (std::vector<char>{'l', 'o', 'l', 'o', 'l', 'o'}));
}

TEST(TakeTurns, KeepsTheSamplesOfEachMeasurementInTheOrderOfTheRuns) {
  double count = 0;
  const auto measure = [&count](double base) {
    return [&count, base]() -> absl::StatusOr<Sample> { return SampleOf(base + count++, 1, 1, {}); };
  };
  Options options;
  options.runs = 2;
  const Measurement measurements[] = {measure(100), measure(200), measure(300)};
  const auto samples = TakeTurns(options, "x", measurements);
  ASSERT_TRUE(samples.ok()) << samples.status();
  ASSERT_EQ(samples->size(), 3);
  EXPECT_EQ((*samples)[0][1].operations, 103);
  EXPECT_EQ((*samples)[2][0].operations, 302);
}

TEST(MeasureInTurns, FailsIfNoOperationEndedInAWindow) {
  const absl::StatusOr<Row> row = MeasureInTurns(
      Options(), "x", "dense/x", BytesScale(1), []() -> absl::StatusOr<Sample> { return SampleOf(0, 1, 1, {}); },
      nullptr);
  EXPECT_THAT(row.status().message(), HasSubstr("dense/x: no operation ended"));
}

// Burns CPU time until the end and says that it did one operation for each client; fails if told to.
class Burner final : public Load {
 public:
  absl::StatusOr<Outcome> Run(const Order& order) override {
    if (order.operation == 1) return absl::DataLossError("told to");
    while (NowNs() < order.end_ns) {
    }
    Outcome outcome;
    outcome.operations = order.request_bytes;
    outcome.started = 2 * order.request_bytes;
    outcome.latencies_us = {static_cast<float>(order.request_bytes)};
    return outcome;
  }
};

absl::StatusOr<std::unique_ptr<Load>> MakeBurner() { return std::make_unique<Burner>(); }

TEST(MeasureWindow, AddsUpWhatProcessesOfTheirOwnDid) {
  std::vector<std::unique_ptr<Peer>> peers;
  for (const char* name : {"one", "two"}) {
    auto peer = Peer::Start(name, MakeBurner);
    ASSERT_TRUE(peer.ok()) << peer.status();
    peers.push_back(*std::move(peer));
  }
  EXPECT_NE(peers[0]->pid(), getpid());
  EXPECT_NE(peers[0]->pid(), peers[1]->pid());
  std::vector<Order> orders(2);
  orders[0].request_bytes = 3;
  orders[1].request_bytes = 4;
  double cpu_seconds = 0;
  // A busy machine may give the processes nothing in a window so short.
  for (int run = 0; run < 2 || cpu_seconds == 0; ++run) {
    const absl::StatusOr<Sample> sample = MeasureWindow(peers, orders, 0, 50);
    ASSERT_TRUE(sample.ok()) << sample.status();
    EXPECT_EQ(sample->operations, 7);
    EXPECT_EQ(sample->latencies_us, (std::vector<float>{3, 4}));
    EXPECT_DOUBLE_EQ(sample->seconds, 0.05);
    cpu_seconds += sample->client_cpu_seconds;
    EXPECT_EQ(sample->server_cpu_seconds, 0);
  }
  EXPECT_GT(cpu_seconds, 0);
}

// Says that it did order.depth operations, each in order.request_bytes microseconds.
class Steady final : public Load {
 public:
  absl::StatusOr<Outcome> Run(const Order& order) override {
    Outcome outcome;
    outcome.operations = order.depth;
    outcome.latencies_us.assign(order.depth, static_cast<float>(order.request_bytes));
    return outcome;
  }
};

TEST(MeasureWindow, TellsTheP99OfTheSlowestClientWhereEachHasEnoughOperationsForOne) {
  std::vector<std::unique_ptr<Peer>> peers;
  for (const char* name : {"fast", "slow"}) {
    auto peer = Peer::Start(name, []() -> absl::StatusOr<std::unique_ptr<Load>> { return std::make_unique<Steady>(); });
    ASSERT_TRUE(peer.ok()) << peer.status();
    peers.push_back(*std::move(peer));
  }
  std::vector<Order> orders(2);
  orders[0].depth = 10'000;
  orders[0].request_bytes = 3;
  orders[1].depth = 100;
  orders[1].request_bytes = 40;
  const absl::StatusOr<Sample> sample = MeasureWindow(peers, orders, 0, 20);
  ASSERT_TRUE(sample.ok()) << sample.status();
  const Row row = MakeRow("x", "x", BytesScale(1), {*sample}, {});
  EXPECT_THAT(row.Find(kP99), Pointee(ElementsAre(DoubleEq(3)))) << "the slow one's are less than 1 % of all";
  EXPECT_THAT(row.Find(kSlowestP99), Pointee(ElementsAre(DoubleEq(40))));
  orders[1].depth = 99;
  const absl::StatusOr<Sample> few = MeasureWindow(peers, orders, 0, 20);
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_EQ(MakeRow("x", "x", BytesScale(1), {*few}, {}).Find(kSlowestP99), nullptr);
}

TEST(MeasureWindow, TheServersCopiesAreThoseOfTheOperationsThatCount) {
  auto peer = Peer::Start("one", MakeBurner);
  ASSERT_TRUE(peer.ok()) << peer.status();
  const std::unique_ptr<Peer> peers[] = {*std::move(peer)};
  Order order;
  order.request_bytes = 5;  // Of the ten operations that are started, five end in time.
  double copied = 0;
  const ServerPids counts({}, [&copied]() -> std::optional<double> { return copied += 1000; });
  const absl::StatusOr<Sample> sample = MeasureWindow(peers, {order}, counts, 20);
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_DOUBLE_EQ(sample->server_bytes_copied, 500);
  const Row row = MakeRow("x", "x", BytesScale(200), {*sample}, {});
  EXPECT_THAT(row.Find(kServerCopies), Pointee(ElementsAre(DoubleEq(0.5))));  // 500 bytes for five operations of 200.
  const ServerPids silent({}, [] { return std::optional<double>(); });
  const absl::StatusOr<Sample> unknown = MeasureWindow(peers, {order}, silent, 20);
  ASSERT_TRUE(unknown.ok()) << unknown.status();
  EXPECT_EQ(unknown->server_bytes_copied, 0);
}

TEST(MeasureWindow, NamesTheProcessThatFailedAndGoesOnAfterwards) {
  std::vector<std::unique_ptr<Peer>> peers;
  auto peer = Peer::Start("the burner", MakeBurner);
  ASSERT_TRUE(peer.ok()) << peer.status();
  peers.push_back(*std::move(peer));
  Order order;
  order.operation = 1;
  const absl::Status status = MeasureWindow(peers, {order}, 0, 20).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "the burner: told to");
  order.operation = 0;
  order.request_bytes = 1;
  EXPECT_TRUE(MeasureWindow(peers, {order}, 0, 20).ok());
}

// Does its one operation only in a window of 60 ms or more.
class Sluggard final : public Load {
 public:
  absl::StatusOr<Outcome> Run(const Order& order) override {
    Outcome outcome;
    outcome.operations = order.end_ns - order.start_ns >= 60'000'000 ? 1 : 0;
    return outcome;
  }
};

TEST(MeasureWindow, LengthensAWindowInWhichNothingEnded) {
  std::vector<std::unique_ptr<Peer>> peers;
  auto peer =
      Peer::Start("slow", []() -> absl::StatusOr<std::unique_ptr<Load>> { return std::make_unique<Sluggard>(); });
  ASSERT_TRUE(peer.ok()) << peer.status();
  peers.push_back(*std::move(peer));
  const absl::StatusOr<Sample> sample = MeasureWindow(peers, {Order()}, 0, 20);
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(sample->operations, 1);
  EXPECT_DOUBLE_EQ(sample->seconds, 0.08);
}

TEST(Peer, SaysWhyItsLoadCouldNotBeMade) {
  const auto peer = Peer::Start(
      "client 3", []() -> absl::StatusOr<std::unique_ptr<Load>> { return absl::UnavailableError("nobody is there"); });
  EXPECT_EQ(peer.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(peer.status().message(), "client 3: nobody is there");
}

TEST(CpuSeconds, GrowsWithWorkAndIsZeroOfNobody) {
  const double before = CpuSeconds(getpid());
  while (CpuSeconds(getpid()) < before + 0.005) {
  }
  EXPECT_GT(before, 0);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_EQ(CpuSeconds(child), 0);
}

TEST(Errand, BringsBackWhatAProcessOfItsOwnFound) {
  const pid_t pid = getpid();
  auto errand = Errand::Start("an errand", [pid]() -> absl::StatusOr<std::string> {
    return std::string(getpid() == pid ? "ours" : "its own") + std::string(1 << 20, 'x');
  });
  ASSERT_TRUE(errand.ok()) << errand.status();
  const absl::StatusOr<std::string> result = (*errand)->Wait();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(*result, "its own" + std::string(1 << 20, 'x'));
}

TEST(Errand, TellsItsErrorWithItsName) {
  auto errand = Errand::Start("an errand", [] { return absl::DataLossError("found nothing"); });
  ASSERT_TRUE(errand.ok()) << errand.status();
  const absl::Status status = (*errand)->Wait().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "an errand: found nothing");
}

}  // namespace
}  // namespace lodestone::bench
