#include "server/coordinator/validations.h"

#include <limits>
#include <optional>
#include <string>

#include "common/base/limits.h"
#include "common/base/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/worker_clocks.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

v1::Validation Result(uint64_t number, double auc, bool lower_is_better = false) {
  v1::Validation result;
  result.set_number(number);
  result.mutable_judged_by()->set_name(lower_is_better ? "rmse" : "auc");
  result.mutable_judged_by()->set_value(auc);
  result.set_lower_is_better(lower_is_better);
  result.add_versions(7);
  return result;
}

TEST(Validations, EachNumberIsGivenAwayOnceAndNoneBelowALaterOne) {
  Validations validations;
  EXPECT_TRUE(validations.Claim(1));
  EXPECT_FALSE(validations.Claim(1));
  EXPECT_TRUE(validations.Claim(4)) << "a worker that is ahead";
  EXPECT_FALSE(validations.Claim(3));
  EXPECT_EQ(validations.state().claimed(), 4u);
}

TEST(Validations, TheBestIsTheGreatestOrTheLeastByTheMetric) {
  Validations rising, falling;
  EXPECT_TRUE(rising.Report(Result(1, 0.7), 0));
  EXPECT_TRUE(rising.Report(Result(2, 0.8), 0));
  EXPECT_FALSE(rising.Report(Result(3, 0.8), 0)) << "as good is no better";
  EXPECT_EQ(rising.state().best().number(), 2u);
  EXPECT_TRUE(falling.Report(Result(1, 2, true), 0));
  EXPECT_TRUE(falling.Report(Result(2, 1, true), 0));
  EXPECT_FALSE(falling.Report(Result(3, 1.5, true), 0));
  EXPECT_EQ(falling.state().best().number(), 2u);
  EXPECT_EQ(falling.state().best().versions_size(), 1);
  EXPECT_EQ(falling.state().results(1).versions_size(), 0) << "versions are kept of the best only";
}

TEST(Validations, ANumberThatIsNoneIsNeverTheBest) {
  Validations validations;
  EXPECT_FALSE(validations.Report(Result(1, std::numeric_limits<double>::quiet_NaN()), 0));
  EXPECT_TRUE(validations.Report(Result(2, 0.5), 0));
}

TEST(Validations, PatienceCountsResultsSinceTheBest) {
  Validations validations;
  validations.Report(Result(1, 0.7), 2);
  validations.Report(Result(2, 0.6), 2);
  validations.Report(Result(3, 0.8), 2);
  validations.Report(Result(4, 0.7), 2);
  EXPECT_THAT(validations.stopped(), IsEmpty());
  validations.Report(Result(5, 0.79), 2);
  EXPECT_EQ(validations.stopped(), "auc has not improved in 2 validations: the best was 0.8, of validation 3");
}

TEST(Validations, WithoutPatienceNothingEnds) {
  Validations validations;
  validations.Report(Result(1, 0.7), 0);
  for (uint64_t number = 2; number < 100; ++number) validations.Report(Result(number, 0.1), 0);
  EXPECT_THAT(validations.stopped(), IsEmpty());
}

TEST(Validations, AReportThatIsSentAgainCountsOnce) {
  Validations validations;
  EXPECT_TRUE(validations.Report(Result(1, 0.7), 2));
  EXPECT_TRUE(validations.Report(Result(1, 0.7), 2)) << "and is answered as the first was";
  validations.Report(Result(2, 0.6), 2);
  const uint64_t changes = validations.changes();
  EXPECT_FALSE(validations.Report(Result(2, 0.6), 2));
  EXPECT_EQ(validations.changes(), changes);
  EXPECT_THAT(validations.stopped(), IsEmpty());
}

TEST(Validations, TheNewestAreKept) {
  Validations validations;
  for (uint64_t number = 1; number <= limits::kValidationsMax + 10; ++number) {
    validations.Report(Result(number, number == 1 ? 0.9 : 0.5), 0);
  }
  EXPECT_EQ(validations.state().results_size(), static_cast<int>(limits::kValidationsMax));
  EXPECT_EQ(validations.state().results(0).number(), 11u);
  EXPECT_EQ(validations.state().best().number(), 1u);
}

TEST(Validations, WhereMetricsTakeMuchOnlyTheBestAndTheNewestKeepThemAll) {
  constexpr int kMetrics = 100;
  constexpr uint64_t kResults = 20;
  Validations validations;
  for (uint64_t number = 1; number <= kResults; ++number) {
    v1::Validation result = Result(number, number == 2 ? 0.9 : 0.5);
    for (int k = 0; k < kMetrics; ++k) {
      result.add_metrics()->set_name(std::string(Validations::kMetricsBytesMax / (5 * kMetrics), 'x'));
    }
    EXPECT_EQ(validations.Report(result, 0), number <= 2);
  }
  Validations restored;
  restored.Restore(validations.state());
  for (const v1::ValidationState& state : {validations.state(), restored.state()}) {
    ASSERT_EQ(state.results_size(), static_cast<int>(kResults));
    EXPECT_EQ(state.best().metrics_size(), kMetrics);
    for (const v1::Validation& result : state.results()) {
      const bool all = result.number() == 2 || result.number() > kResults - 3;
      ASSERT_EQ(result.metrics_size(), all ? kMetrics : 1) << result.number();
      if (all) continue;
      EXPECT_EQ(result.metrics(0).name(), "auc");
      EXPECT_EQ(result.metrics(0).value(), 0.5);
    }
  }
}

TEST(Validations, TheCheckpointBeforeTheKeptOneIsKnownToo) {
  Validations validations;
  v1::KeptValidation kept;
  for (const char* name : {"best-1", "best-3", "best-3", "best-4"}) {
    kept.set_checkpoint(name);
    validations.NoteKept(kept);
  }
  EXPECT_EQ(validations.state().kept(), "best-4");
  EXPECT_EQ(validations.state().kept_before(), "best-3");
}

class ValidationRunTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kLeaseMs = 1000;

  Membership::Options Options() {
    Membership::Options options;
    options.cluster = "test";
    options.workers = 2;
    options.shards = 8;
    options.lease_ms = kLeaseMs;
    options.first_incarnation = 100;
    options.time = &time_;
    return options;
  }

  Incarnation Join(uint32_t index) {
    v1::JoinRequest request;
    request.set_role(v1::ROLE_WORKER);
    request.set_cluster("test");
    request.set_index_plus_one(index + 1);
    const auto joined = members_->Join(request);
    EXPECT_TRUE(joined.ok()) << joined.status();
    return joined.ok() ? joined->incarnation() : 0;
  }

  absl::StatusOr<v1::ValidateResponse> Claim(Incarnation worker, uint64_t number) {
    v1::ValidateRequest request;
    request.set_incarnation(worker);
    request.set_claim(number);
    return members_->Validate(request);
  }

  v1::ValidateResponse Report(Incarnation worker, uint64_t number, double auc, uint32_t patience) {
    EXPECT_TRUE(Claim(worker, number).ok());
    v1::ValidateRequest request;
    request.set_incarnation(worker);
    request.set_patience(patience);
    *request.mutable_result() = Result(number, auc);
    const auto response = members_->Validate(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::ValidateResponse());
  }

  v1::HeartbeatResponse Beat(Incarnation worker, const v1::WorkerProgress& progress = {}, bool leaving = false) {
    v1::HeartbeatRequest request;
    request.set_incarnation(worker);
    request.set_leaving(leaving);
    *request.mutable_progress() = progress;
    const auto response = members_->Heartbeat(request);
    EXPECT_TRUE(response.ok()) << response.status();
    return response.value_or(v1::HeartbeatResponse());
  }

  void RestartCoordinator() {
    const v1::CoordinatorState state = members_->SaveState();
    members_.emplace(Options());
    const absl::Status restored = members_->Restore(state);
    ASSERT_TRUE(restored.ok()) << restored;
  }

  ManualTime time_;
  std::optional<Membership> members_{std::in_place, Options()};
};

TEST_F(ValidationRunTest, AllWorkersAreToldThatTrainingEndsEarly) {
  const Incarnation first = Join(0), second = Join(1);
  EXPECT_TRUE(Report(first, 1, 0.8, 1).best());
  EXPECT_THAT(Beat(second).stop_training(), IsEmpty());
  EXPECT_FALSE(Report(second, 2, 0.7, 1).best());
  EXPECT_THAT(Beat(first).stop_training(), HasSubstr("the best was 0.8, of validation 1"));
  EXPECT_THAT(Beat(second).stop_training(), HasSubstr("auc has not improved in 1 validation:"));
  EXPECT_EQ(members_->Status().validations().best().number(), 1u);
}

TEST_F(ValidationRunTest, ClaimsTellTheSamplesOfAllWorkers) {
  const Incarnation first = Join(0), second = Join(1);
  v1::WorkerProgress progress;
  progress.set_samples(30);
  Beat(first, progress);
  progress.set_samples(12);
  Beat(second, progress);
  const auto claim = Claim(second, 1);
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_TRUE(claim->claimed());
  EXPECT_EQ(claim->cluster_samples(), 42u);
  EXPECT_FALSE(Claim(first, 1)->claimed());
}

TEST_F(ValidationRunTest, PatienceOutlivesTheCoordinator) {
  const Incarnation worker = Join(0);
  Report(worker, 1, 0.8, 3);
  Report(worker, 2, 0.7, 3);
  Report(worker, 3, 0.7, 3);
  RestartCoordinator();
  EXPECT_FALSE(Claim(worker, 3)->claimed()) << "it is done";
  EXPECT_THAT(Beat(worker).stop_training(), IsEmpty());
  Report(worker, 4, 0.7, 3);
  EXPECT_THAT(Beat(worker).stop_training(), HasSubstr("in 3 validations"));
  RestartCoordinator();
  EXPECT_THAT(Beat(worker).stop_training(), HasSubstr("in 3 validations")) << "and so does the decision";
}

TEST_F(ValidationRunTest, EveryChangeIsToBeSaved) {
  const Incarnation worker = Join(0);
  uint64_t changes = members_->changes();
  Claim(worker, 1).IgnoreError();
  EXPECT_GT(members_->changes(), changes);
  changes = members_->changes();
  Report(worker, 1, 0.8, 3);
  EXPECT_GT(members_->changes(), changes);
}

TEST_F(ValidationRunTest, AnotherRunBeginsAnew) {
  const Incarnation first = Join(0), second = Join(1);
  Report(first, 1, 0.8, 1);
  Report(first, 2, 0.7, 1);
  Beat(first, {}, /*leaving=*/true);
  EXPECT_THAT(Beat(second).stop_training(), HasSubstr("has not improved"));
  EXPECT_THAT(Beat(Join(0)).stop_training(), HasSubstr("has not improved")) << "the run is not over: one still lives";
  time_.AdvanceMs(2 * kLeaseMs);  // Both die.
  members_->TakeExpired();
  const Incarnation next = Join(0);
  EXPECT_THAT(Beat(next).stop_training(), IsEmpty());
  EXPECT_TRUE(Claim(next, 1)->claimed());
}

TEST_F(ValidationRunTest, AWorkerThatComesBackGoesOnWithTheRun) {
  const Incarnation worker = Join(0);
  Report(worker, 1, 0.8, 3);
  time_.AdvanceMs(2 * kLeaseMs);
  members_->TakeExpired();
  EXPECT_FALSE(Claim(Join(0), 1)->claimed()) << "the one before has died, and training is to go on";
}

TEST_F(ValidationRunTest, AWorkerThatTrainingEndedEarlyForLacksNothing) {
  const Incarnation first = Join(0), second = Join(1);
  v1::WorkerProgress progress;
  progress.set_phase(v1::PHASE_FINISHED);
  progress.set_samples(10);
  progress.set_samples_total(50);
  Beat(second, progress);
  EXPECT_EQ(UntrainedWorkers(members_->members(), first).size(), 1u);
  progress.set_stopped_early(true);
  Beat(second, progress);
  EXPECT_THAT(UntrainedWorkers(members_->members(), first), IsEmpty());
}

TEST_F(ValidationRunTest, MetricsOfManyLabelsWithLongNamesAreTaken) {
  const Incarnation worker = Join(0);
  v1::ValidateRequest request;
  request.set_incarnation(worker);
  *request.mutable_result() = Result(1, 0.5);
  const auto add_labels = [&request](int count, char letter) {
    for (int k = 0; k < count; ++k) {
      for (const char* metric : {"loss", "accuracy", "auc", "gauc", "normalized_entropy", "calibration"}) {
        v1::ValidationMetric& added = *request.mutable_result()->add_metrics();
        added.set_name(std::string(30, letter) + "/" + metric);
        added.set_value(0.5);
      }
    }
  };
  add_labels(12, 'a');
  ASSERT_TRUE(Claim(worker, 1).ok());
  const auto response = members_->Validate(request);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_TRUE(response->best());
  EXPECT_EQ(response->state().best().metrics_size(), 72);
  add_labels(64 - 12, 'b');
  EXPECT_TRUE(members_->Validate(request).ok());
  add_labels(64, 'c');
  EXPECT_EQ(members_->Validate(request).status().code(), absl::StatusCode::kInvalidArgument) << "too many";
  request.mutable_result()->clear_metrics();
  request.mutable_result()->add_metrics()->set_name(std::string(5000, 'x'));
  EXPECT_EQ(members_->Validate(request).status().code(), absl::StatusCode::kInvalidArgument) << "too long";
}

// A state of tens of megabytes could not be saved in etcd, and then nothing could.
TEST_F(ValidationRunTest, ResultsOfAnyKindLeaveTheStateShortEnoughForEtcd) {
  const Incarnation worker = Join(0);
  const std::string name(300, 'x');
  for (uint64_t number = 1; number <= limits::kValidationsMax; ++number) {
    ASSERT_TRUE(Claim(worker, number).ok());
    v1::ValidateRequest request;
    request.set_incarnation(worker);
    v1::Validation& result = *request.mutable_result();
    result = Result(number, 1.0 / static_cast<double>(number));
    result.mutable_judged_by()->set_name(name);
    for (size_t k = 0; k < 6 * limits::kLabelsMax + 16; ++k) {
      v1::ValidationMetric& metric = *result.add_metrics();
      metric.set_name(name);
      metric.set_value(0.5);
    }
    const auto response = members_->Validate(request);
    ASSERT_TRUE(response.ok()) << response.status();
  }
  // What each is judged by, twice, and the best, twice too.
  EXPECT_LT(members_->SaveState().ByteSizeLong(), Validations::kMetricsBytesMax + 450'000);
  EXPECT_LT(members_->SaveState().ByteSizeLong(), limits::kEtcdStateBytesMax / 2);
  EXPECT_EQ(members_->Status().validations().results_size(), static_cast<int>(limits::kValidationsMax));
}

TEST_F(ValidationRunTest, WhatMakesNoSenseIsRefused) {
  const Incarnation worker = Join(0);
  v1::ValidateRequest request;
  request.set_incarnation(worker);
  *request.mutable_result() = Result(1, 0.5);
  EXPECT_EQ(members_->Validate(request).status().code(), absl::StatusCode::kInvalidArgument) << "never claimed";
  ASSERT_TRUE(Claim(worker, 1).ok());
  request.mutable_result()->mutable_judged_by()->set_name(std::string(5000, 'x'));
  EXPECT_EQ(members_->Validate(request).status().code(), absl::StatusCode::kInvalidArgument) << "too long";
  EXPECT_EQ(Claim(worker + 77, 2).status().code(), absl::StatusCode::kFailedPrecondition) << "nobody";
}

}  // namespace
}  // namespace lodestone::server
