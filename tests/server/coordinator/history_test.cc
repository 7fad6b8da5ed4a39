#include "server/coordinator/history.h"

#include <optional>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

constexpr int kMax = static_cast<int>(limits::kHistoryPointsMax);
constexpr int64_t kPeriodMs = limits::kHistoryPeriodMs;

class HistoryTest : public ::testing::Test {
 protected:
  static Moment Training(double samples_per_second, float loss, uint64_t samples = 0) {
    Moment moment;
    moment.trains = true;
    moment.point.set_samples_per_second(samples_per_second);
    moment.point.set_pushes_per_second(samples_per_second / 10);
    moment.point.set_loss(loss);
    moment.point.set_staleness_pushes(2 * loss);
    moment.point.set_samples(samples);
    moment.point.set_workers(2);
    return moment;
  }
  // Waits until the next point is due, and adds it.
  void Add(const Moment& moment) {
    const std::optional<int64_t> next_ms = history_.NextMs(moment.point.workers() > 0);
    ASSERT_TRUE(next_ms.has_value());
    time_.AdvanceMs(*next_ms - time_.NowMs());
    history_.Add(moment);
  }
  int points() const { return history_.Tell().points_size(); }

  ManualTime time_;
  const int64_t start_ms_ = time_.NowMs();
  History history_{&time_};
};

TEST_F(HistoryTest, AddsAPointEachPeriodWithItsTime) {
  for (int i = 0; i < 3; ++i) Add(Training(100 + i, 0.5f, 1000 * i));
  const v1::HistoryResponse told = history_.Tell();
  ASSERT_EQ(told.points_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(told.points(i).time_ms(), start_ms_ + (i + 1) * kPeriodMs);
    EXPECT_EQ(told.points(i).samples_per_second(), 100 + i);
    EXPECT_EQ(told.points(i).pushes_per_second(), (100 + i) / 10.0);
    EXPECT_EQ(told.points(i).samples(), 1000u * i);
    EXPECT_EQ(told.points(i).loss(), 0.5f);
    EXPECT_EQ(told.points(i).staleness_pushes(), 1.0f);
    EXPECT_EQ(told.points(i).workers(), 2);
  }
}

TEST_F(HistoryTest, WhenThereAreTooManyEveryTwoBecomeOneAndThePeriodDoubles) {
  for (int i = 0; i < kMax; ++i) Add(Training(i, 1.0f, 10 * i));
  ASSERT_EQ(points(), kMax);
  Add(Training(kMax, 1.0f, 10 * kMax));
  v1::HistoryResponse told = history_.Tell();
  ASSERT_EQ(told.points_size(), kMax / 2 + 1);
  EXPECT_EQ(told.points(0).samples_per_second(), 0.5) << "the mean of 0 and 1";
  EXPECT_EQ(told.points(0).time_ms(), start_ms_ + 2 * kPeriodMs) << "the end of the second";
  EXPECT_EQ(told.points(0).samples(), 10);
  EXPECT_EQ(told.points(7).samples_per_second(), 14.5);
  EXPECT_EQ(told.points(kMax / 2).samples_per_second(), kMax) << "the last one stays alone";
  EXPECT_EQ(*history_.NextMs(true), time_.NowMs() + 2 * kPeriodMs);
  Add(Training(1, 1.0f));
  told = history_.Tell();
  EXPECT_EQ(told.points(kMax / 2 + 1).time_ms() - told.points(kMax / 2).time_ms(), 2 * kPeriodMs);
}

TEST_F(HistoryTest, IsBoundedForHoursAndGoesBackToTheStart) {
  double sum_ms = 0;
  for (const int64_t end_ms = start_ms_ + 50'000 * kPeriodMs; time_.NowMs() < end_ms;) {
    Add(Training(100, 0.25f));
    ASSERT_LE(points(), kMax);
  }
  const v1::HistoryResponse told = history_.Tell();
  EXPECT_GE(told.points_size(), kMax / 2);
  uint64_t before_ms = start_ms_;
  for (const v1::HistoryPoint& point : told.points()) {
    EXPECT_GT(point.time_ms(), before_ms);
    sum_ms += static_cast<double>(point.time_ms() - before_ms);
    before_ms = point.time_ms();
    EXPECT_NEAR(point.samples_per_second(), 100, 1e-9);
    EXPECT_EQ(point.loss(), 0.25f);
  }
  EXPECT_EQ(before_ms, static_cast<uint64_t>(time_.NowMs()));
  EXPECT_EQ(sum_ms, static_cast<double>(time_.NowMs() - start_ms_));
}

TEST_F(HistoryTest, AStretchInWhichNobodyTrainedWeighsNothingInTheLoss) {
  Moment loads;
  loads.point.set_workers(1);
  loads.point.set_loss(99);  // Means nothing.
  for (int i = 0; i < 2; ++i) Add(loads);
  EXPECT_EQ(history_.Tell().points(0).loss(), 0);
  Add(loads);
  Add(Training(50, 0.5f));
  Add(Training(50, 0.25f));
  Add(Training(50, 0.75f));
  while (points() < kMax) Add(Training(50, 0.5f));
  Add(Training(50, 0.5f));
  const v1::HistoryResponse told = history_.Tell();
  EXPECT_EQ(told.points(0).loss(), 0);
  EXPECT_EQ(told.points(1).loss(), 0.5f) << "of the half in which a worker trained";
  EXPECT_EQ(told.points(1).staleness_pushes(), 1.0f);
  EXPECT_EQ(told.points(1).samples_per_second(), 25) << "but nothing was done in the other half";
  EXPECT_EQ(told.points(2).loss(), 0.5f);
}

TEST_F(HistoryTest, APointThatCameLateWeighsAsMuchAsItsTime) {
  Add(Training(0, 1.0f));
  time_.AdvanceMs(3 * kPeriodMs);  // As after a stopped process.
  history_.Add(Training(100, 3.0f));
  while (points() < kMax) Add(Training(50, 0.5f));
  Add(Training(50, 0.5f));
  EXPECT_DOUBLE_EQ(history_.Tell().points(0).samples_per_second(), 75);
  EXPECT_FLOAT_EQ(history_.Tell().points(0).loss(), 2.5f);
}

TEST_F(HistoryTest, TheMetricOfTwoPointsIsTheirMeanWhereBothHaveIt) {
  const auto told = [](const char* name, double metric) {
    Moment moment = Training(50, 0.5f);
    moment.point.set_metric_name(name);
    moment.point.set_metric(metric);
    return moment;
  };
  Moment loads = told("auc", 0.99);  // Means nothing.
  loads.trains = false;
  const Moment moments[] = {told("auc", 0.5),   told("auc", 0.75),    // Both.
                            Training(50, 0.5f), told("auc", 0.25),    // One of them: it was the first to tell.
                            told("auc", 0.875), loads,                // Nobody trains any more.
                            told("auc", 0.875), told("rmse", 2),      // Another model's.
                            Training(50, 0.5f), Training(50, 0.5f)};  // None, as of workers of an older version.
  for (const Moment& moment : moments) Add(moment);
  EXPECT_EQ(history_.Tell().points(5).metric_name(), "");
  EXPECT_EQ(history_.Tell().points(5).metric(), 0);
  while (points() < kMax) Add(told("rmse", 1));
  Add(told("rmse", 1));
  ASSERT_EQ(points(), kMax / 2 + 1);
  v1::HistoryResponse history = history_.Tell();
  const auto at = [&history](int point) {
    return std::pair(history.points(point).metric_name(), history.points(point).metric());
  };
  EXPECT_EQ(at(0), std::pair(std::string("auc"), 0.625));
  EXPECT_EQ(at(1), std::pair(std::string("auc"), 0.25));
  EXPECT_EQ(at(2), std::pair(std::string("auc"), 0.875));
  EXPECT_EQ(at(3), std::pair(std::string("rmse"), 2.0));
  EXPECT_EQ(at(4), std::pair(std::string(), 0.0));
  // Again: what has told for half of its time weighs half as much.
  while (points() < kMax) Add(told("rmse", 1));
  Add(told("rmse", 1));
  history = history_.Tell();
  EXPECT_EQ(at(0), std::pair(std::string("auc"), 0.5));
  EXPECT_EQ(at(1), std::pair(std::string("rmse"), 2.0));
  EXPECT_EQ(at(2), std::pair(std::string("rmse"), 1.0));
}

TEST_F(HistoryTest, AnIdleClusterKeepsTheHistoryOfItsLastRun) {
  EXPECT_EQ(history_.NextMs(false), std::nullopt);
  EXPECT_EQ(points(), 0);
  Add(Training(50, 0.5f));
  EXPECT_TRUE(history_.NextMs(false).has_value()) << "that the work has ended is a point yet";
  Add(Moment());
  ASSERT_EQ(points(), 2);
  EXPECT_EQ(history_.Tell().points(1).samples_per_second(), 0);
  EXPECT_EQ(history_.NextMs(false), std::nullopt);
  time_.AdvanceMs(1'000'000);
  history_.Add(Moment());
  EXPECT_EQ(points(), 2);
  Add(Training(60, 0.5f));
  ASSERT_EQ(points(), 3);
  EXPECT_EQ(history_.Tell().points(2).samples_per_second(), 60);
}

}  // namespace
}  // namespace lodestone::server
