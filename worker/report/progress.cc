#include "worker/report/progress.h"

#include "common/telemetry/log.h"

namespace lodestone::worker {
namespace {

constexpr int64_t kReportEveryMs = 200;
constexpr int64_t kLogEveryMs = 10'000;

}  // namespace

void Progress::Enter(v1::Phase phase) {
  progress_.set_phase(phase);
  Report();
}

void Progress::WaitsFor(const std::string& what) {
  progress_.set_waiting_for(what);
  Report();
}

void Progress::StartTraining(uint64_t samples_total) {
  progress_.set_samples_total(samples_total);
  logged_ms_ = time_->NowMs();
  Enter(v1::PHASE_TRAINING);
}

bool Progress::Step(const StepCounts& counts) {
  weight_ += counts.weight;
  loss_sum_ += counts.loss_sum;
  progress_.set_clock(counts.clock);
  progress_.set_samples(counts.samples);
  const bool last = progress_.samples_total() > 0 && counts.samples >= progress_.samples_total();
  if (!Due() && !last) return false;
  progress_.set_loss(static_cast<float>(weight_ == 0 ? 0 : loss_sum_ / weight_));
  if (counts.acknowledged > acknowledged_before_) {
    progress_.set_staleness_pushes(static_cast<float>((counts.staleness_sum - staleness_before_) /
                                                      static_cast<double>(counts.acknowledged - acknowledged_before_)));
  }
  progress_.clear_stages();
  for (size_t i = 0; i < kStages; ++i) {
    v1::StageTime* const stage = progress_.add_stages();
    stage->set_stage(kStageNames[i]);
    stage->set_seconds(counts.stages[i]);
  }
  metric_.Update();
  progress_.set_metric_name(metric_.value().name);
  progress_.set_metric(static_cast<float>(metric_.value().value));
  acknowledged_before_ = counts.acknowledged;
  staleness_before_ = counts.staleness_sum;
  weight_ = 0;
  loss_sum_ = 0;
  Report();
  if (time_->NowMs() - logged_ms_ < kLogEveryMs) return true;
  logged_ms_ = time_->NowMs();
  LODESTONE_LOG(INFO, "trainer", "training steps={} samples={} of={} loss={:.5f} staleness_pushes={:.2f}", counts.clock,
                counts.samples, progress_.samples_total(), progress_.loss(), progress_.staleness_pushes());
  return true;
}

void Progress::Delays(const std::vector<DelaySummary>& delays) {
  progress_.clear_delays();
  for (const DelaySummary& delay : delays) {
    v1::DelaySummary* const to = progress_.add_delays();
    to->set_table(delay.table);
    to->set_pushes(delay.pushes);
    to->set_mean(static_cast<float>(delay.mean));
    to->set_own(static_cast<float>(delay.own));
    to->set_p50(static_cast<uint32_t>(delay.p50));
    to->set_p90(static_cast<uint32_t>(delay.p90));
    to->set_max(static_cast<uint32_t>(delay.max));
  }
}

void Progress::Consistency(const v1::ConsistencyProgress& observed) {
  if (!observed.kind().empty()) *progress_.mutable_consistency() = observed;
}

void Progress::Evaluated(uint64_t samples, uint64_t samples_total) {
  progress_.set_evaluated(samples);
  progress_.set_evaluated_total(samples_total);
  if (Due() || samples >= samples_total) Report();
}

bool Progress::Due() { return time_->NowMs() - reported_ms_ >= kReportEveryMs; }

void Progress::Report() {
  reported_ms_ = time_->NowMs();
  client_->ReportProgress(progress_);
}

}  // namespace lodestone::worker
