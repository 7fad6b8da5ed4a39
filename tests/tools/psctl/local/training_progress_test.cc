#include "tools/psctl/local/training_progress.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/psctl/text/table.h"

namespace lodestone::psctl {
namespace {

using testing::HasSubstr;
using testing::Not;

v1::WorkerProgress* AddWorker(v1::StatusResponse* status, v1::Phase phase, uint64_t samples, uint64_t total) {
  v1::WorkerProgress* progress = status->mutable_cluster()->add_workers()->mutable_progress();
  progress->set_phase(phase);
  progress->set_samples(samples);
  progress->set_samples_total(total);
  return progress;
}

ClusterView HalfDone() {
  ClusterView view;
  view.phase = v1::PHASE_TRAINING;
  view.workers_joined = view.workers_expected = 2;
  view.samples = 50'000;
  view.samples_total = 100'000;
  view.loss = 0.5f;
  view.delay = 2;
  return view;
}

TEST(RangesText, SaysHowFarARunHasComeAndWhichRangesWaitForAWorker) {
  v1::ClusterStatus cluster;
  EXPECT_EQ(RangesText(cluster), "");
  v1::RangeState& ranges = *cluster.mutable_ranges();
  ranges.mutable_plan()->set_run("monday");
  ranges.mutable_plan()->set_epoch_batches(100);
  ranges.mutable_plan()->set_batches(250);
  ranges.set_batches_closed(110);
  const auto lease = [&](uint64_t holder, uint32_t done) {
    v1::RangeLease* const range = ranges.add_open();
    range->set_holder(holder);
    range->set_done(done);
  };
  cluster.add_workers()->set_incarnation(7);
  cluster.mutable_workers(0)->set_alive(true);
  cluster.add_workers()->set_incarnation(8);
  lease(7, 5);
  lease(8, 0);
  lease(0, 0);
  ranges.set_leased_again(2);
  EXPECT_EQ(
      RangesText(cluster),
      "run monday: epoch 2 of 3, 46 % of 250 batches; 1 range with workers; 2 ranges wait for a worker; 2 given again");
  ranges.clear_open();
  ranges.set_batches_closed(250);
  ranges.set_over(true);
  EXPECT_EQ(RangesText(cluster), "run monday: epoch 3 of 3, 100 % of 250 batches; 2 given again; over");
}

TEST(ClusterView, OfLeasedSamplesItIsTheRunThatHasATotal) {
  v1::StatusResponse status;
  AddWorker(&status, v1::PHASE_TRAINING, 100, 0);
  status.mutable_cluster()->mutable_ranges()->mutable_plan()->set_samples(5000);
  EXPECT_EQ(ViewOf(status, 1).samples_total, 5000u);
}

TEST(ClusterView, AddsTheWorkersAndAveragesWhatTheyMeasure) {
  v1::StatusResponse status;
  v1::WorkerProgress* first = AddWorker(&status, v1::PHASE_TRAINING, 100, 1000);
  v1::WorkerProgress* second = AddWorker(&status, v1::PHASE_TRAINING, 300, 1000);
  first->set_clock(1);
  first->set_loss(0.25f);
  first->add_delays()->set_mean(1);
  first->add_delays()->set_mean(0.5);
  second->set_clock(3);
  second->set_loss(0.75f);
  second->add_delays()->set_mean(2);
  const ClusterView view = ViewOf(status, 2);
  EXPECT_EQ(view.phase, v1::PHASE_TRAINING);
  EXPECT_EQ(view.samples, 400u);
  EXPECT_EQ(view.samples_total, 2000u);
  EXPECT_EQ(view.loss, 0.5f);
  EXPECT_EQ(view.delay, 1.5f) << "the mean over the workers of the table that has most";
}

TEST(ClusterView, PhaseIsThatOfTheWorkerFurthestBehind) {
  v1::StatusResponse status;
  AddWorker(&status, v1::PHASE_FINISHED, 10, 10);
  AddWorker(&status, v1::PHASE_EVALUATING, 10, 10);
  EXPECT_EQ(ViewOf(status, 2).phase, v1::PHASE_EVALUATING);
  AddWorker(&status, v1::PHASE_LOADING, 0, 0);
  EXPECT_EQ(ViewOf(status, 3).phase, v1::PHASE_LOADING);
}

TEST(ClusterView, TotalIsUnknownUntilEveryWorkerKnowsItsOwn) {
  v1::StatusResponse status;
  AddWorker(&status, v1::PHASE_TRAINING, 10, 100);
  EXPECT_EQ(ViewOf(status, 2).samples_total, 0u) << "the second worker has not joined";
  AddWorker(&status, v1::PHASE_LOADING, 0, 0);
  EXPECT_EQ(ViewOf(status, 2).samples_total, 0u) << "the second worker still loads";
}

TEST(ClusterView, StartsWithNobody) {
  const ClusterView view = ViewOf(v1::StatusResponse(), 2);
  EXPECT_EQ(PhaseText(view), "starting");
  EXPECT_EQ(ProgressLine(view, 0), "starting  0 of 2 workers");
}

TEST(SampleRate, MeasuresTheLastSecondsOnly) {
  SampleRate meter;
  EXPECT_EQ(meter.per_second(), 0);
  meter.Observe(0, 0);
  EXPECT_EQ(meter.per_second(), 0);
  meter.Observe(1, 1000);
  EXPECT_EQ(meter.per_second(), 1000);
  for (int second = 2; second <= 20; ++second) meter.Observe(second, 1000 + 10 * (second - 1));
  EXPECT_EQ(meter.per_second(), 10) << "the fast first second has left the window";
}

TEST(SampleRate, TheTimeBeforeTheFirstDoesNotCount) {
  SampleRate meter;
  for (int second = 0; second <= 4; ++second) meter.Observe(second, 0);
  meter.Observe(5, 1000);
  EXPECT_EQ(meter.per_second(), 1000);
}

TEST(SampleRate, ACountThatFallsGivesNoRate) {
  SampleRate meter;
  meter.Observe(0, 100);
  meter.Observe(1, 50);
  EXPECT_EQ(meter.per_second(), 0);
}

TEST(SecondsLeft, IsTheRestOverTheRate) {
  EXPECT_EQ(SecondsLeft(HalfDone(), 10'000), 5.0);
  EXPECT_FALSE(SecondsLeft(HalfDone(), 0).has_value());
  ClusterView unknown = HalfDone();
  unknown.samples_total = 0;
  EXPECT_FALSE(SecondsLeft(unknown, 10).has_value());
  ClusterView beyond = HalfDone();
  beyond.samples = 100'001;
  EXPECT_EQ(SecondsLeft(beyond, 10), 0.0);
}

TEST(ProgressLine, TellsEverythingWhileTraining) {
  EXPECT_EQ(ProgressLine(HalfDone(), 1'000),
            "training 50 %  50,000 of 100,000 samples  1,000/s  loss 0.5000  delay 2.0  0:50 left");
}

TEST(ProgressLine, TellsTheEvaluationsProgress) {
  ClusterView view = HalfDone();
  view.phase = v1::PHASE_EVALUATING;
  view.evaluated = 2'000;
  view.evaluated_total = 8'000;
  EXPECT_EQ(ProgressLine(view, 0), "evaluating  2,000 of 8,000");
}

TEST(ProgressLine, TellsWhatIsWaitedFor) {
  ClusterView view = HalfDone();
  view.phase = v1::PHASE_WAITING;
  view.waiting_for = "worker 1";
  EXPECT_THAT(ProgressLine(view, 0), HasSubstr("waiting for worker 1"));
}

TEST(ProgressBar, FillsInProportion) {
  const std::string bar = ProgressBar(HalfDone(), 1'000, 140);
  EXPECT_THAT(bar, HasSubstr("[###############...............]  50 %"));
  EXPECT_LE(bar.size(), 140u);
}

TEST(ProgressBar, GivesUpTheBarOnANarrowTerminal) {
  EXPECT_THAT(ProgressBar(HalfDone(), 1'000, 60), Not(HasSubstr("[")));
}

TEST(ProgressBar, NeverShowsMoreThanAll) {
  ClusterView view = HalfDone();
  view.samples = 2 * view.samples_total;
  EXPECT_THAT(ProgressBar(view, 1'000, 140), HasSubstr("] 100 %"));
}

TEST(WithThousands, GroupsByThree) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999), "999");
  EXPECT_EQ(WithThousands(1000), "1,000");
  EXPECT_EQ(WithThousands(1234567), "1,234,567");
}

TEST(Validations, TellTheLastTheBestAndWhatCameOfThem) {
  v1::ValidationState state;
  EXPECT_EQ(ValidationsText(state), "");
  for (const uint64_t number : {1, 2}) {
    v1::Validation& result = *state.add_results();
    result.set_number(number);
    result.set_samples(1000 * number);
    result.set_seconds(1.5);
    result.mutable_judged_by()->set_name("auc");
    result.mutable_judged_by()->set_value(number == 1 ? 0.75 : 0.7);
  }
  *state.mutable_best() = state.results(0);
  EXPECT_EQ(ValidationLine(state.results(0), true),
            "validation 1: auc 0.7500, the best so far; at 1,000 samples, 1.5 s");
  EXPECT_EQ(ValidationLine(state.results(1), false), "validation 2: auc 0.7000; at 2,000 samples, 1.5 s");
  EXPECT_EQ(ValidationsText(state), "last auc 0.7000 (validation 2), best auc 0.7500 (validation 1)");
  state.set_stopped("why");
  state.set_kept("best-1-7");
  EXPECT_EQ(ValidationsText(state),
            "last auc 0.7000 (validation 2), best auc 0.7500 (validation 1); training ends early: why; the best is "
            "kept in best-1-7");
}

}  // namespace
}  // namespace lodestone::psctl
