#include "worker/report/worker_http.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/http/http_client.h"
#include "tests/common/telemetry/metric_text.h"

namespace lodestone::worker {
namespace {

using testing::StartsWith;

v1::WorkerProgress In(v1::Phase phase) {
  v1::WorkerProgress progress;
  progress.set_phase(phase);
  return progress;
}

class WorkerHttpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto http = WorkerHttp::Start("127.0.0.1:0");
    ASSERT_TRUE(http.ok()) << http.status();
    http_ = *std::move(http);
  }
  std::string Ask(const std::string& path) const { return Get(http_->port(), path); }
  MetricText Metrics() const { return MetricText(BodyOf(Ask("/metrics"))); }

  std::unique_ptr<WorkerHttp> http_;
};

TEST_F(WorkerHttpTest, IsReadyFromItsFirstStepOn) {
  EXPECT_EQ(CodeOf(Ask("/healthz")), 200);
  EXPECT_EQ(CodeOf(Ask("/readyz")), 503);
  EXPECT_EQ(BodyOf(Ask("/readyz")), "not ready: this worker has not joined the cluster yet\n");
  http_->Joined(3);
  EXPECT_EQ(BodyOf(Ask("/readyz")), "not ready: this worker is joined\n");
  http_->Report(In(v1::PHASE_LOADING));
  EXPECT_EQ(BodyOf(Ask("/readyz")), "not ready: this worker is loading\n");
  EXPECT_EQ(Metrics().Of("lodestone_worker_ready"), 0);
  for (const v1::Phase phase : {v1::PHASE_TRAINING, v1::PHASE_WAITING, v1::PHASE_EVALUATING}) {
    http_->Report(In(phase));
    EXPECT_EQ(CodeOf(Ask("/readyz")), 200) << phase;
    EXPECT_EQ(Metrics().Of("lodestone_worker_ready"), 1);
  }
  http_->Report(In(v1::PHASE_FINISHED));
  EXPECT_EQ(BodyOf(Ask("/readyz")), "not ready: this worker is finished\n");
  EXPECT_EQ(CodeOf(Ask("/healthz")), 200);
}

TEST_F(WorkerHttpTest, TellsItsProgress) {
  EXPECT_FALSE(Metrics().Has("lodestone_worker_steps_total"));
  http_->Joined(3);
  v1::WorkerProgress progress = In(v1::PHASE_TRAINING);
  progress.set_clock(40);
  progress.set_samples(10'000);
  progress.set_samples_total(20'000);
  progress.set_loss(0.5f);
  progress.set_evaluated(7);
  progress.set_evaluated_total(8);
  http_->Report(progress);
  const MetricText metrics = Metrics();
  EXPECT_EQ(metrics.Of("lodestone_worker_info{index=\"3\"}"), 1);
  EXPECT_EQ(metrics.Of("lodestone_worker_phase{phase=\"training\"}"), 1);
  EXPECT_EQ(metrics.Of("lodestone_worker_phase{phase=\"evaluating\"}"), 0);
  EXPECT_EQ(metrics.Of("lodestone_worker_steps_total"), 40);
  EXPECT_EQ(metrics.Of("lodestone_worker_samples_total"), 10'000);
  EXPECT_EQ(metrics.Of("lodestone_worker_samples_expected"), 20'000);
  EXPECT_EQ(metrics.Of("lodestone_worker_loss"), 0.5);
  EXPECT_EQ(metrics.Of("lodestone_worker_evaluated_samples"), 7);
  EXPECT_EQ(metrics.Of("lodestone_worker_evaluated_samples_expected"), 8);
}

TEST_F(WorkerHttpTest, AnAddressThatCannotBeUsedIsNamed) {
  const auto malformed = WorkerHttp::Start("7081");
  EXPECT_TRUE(absl::IsInvalidArgument(malformed.status())) << malformed.status();
  EXPECT_THAT(std::string(malformed.status().message()), StartsWith("worker.http_listen: `7081` is not host:port"));
  const std::string taken = absl::StrCat("127.0.0.1:", http_->port());
  const auto second = WorkerHttp::Start(taken);
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_EQ(second.status().message(),
            absl::StrCat("worker.http_listen: cannot listen on ", taken, ": Address already in use"));
}

}  // namespace
}  // namespace lodestone::worker
