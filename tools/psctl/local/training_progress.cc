#include "tools/psctl/local/training_progress.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/psctl/text/table.h"

namespace lodestone::psctl {
namespace {

constexpr double kRateWindowSeconds = 5;
constexpr size_t kBarColumnsMax = 30;

double ShareDone(const ClusterView& view) {
  const bool evaluating = view.phase == v1::PHASE_EVALUATING;
  const uint64_t total = evaluating ? view.evaluated_total : view.samples_total;
  if (view.phase == v1::PHASE_FINISHED) return 1;
  return total == 0 ? 0 : std::min(1.0, static_cast<double>(evaluating ? view.evaluated : view.samples) / total);
}

// What is said after the phase and the bar.
std::vector<std::string> Details(const ClusterView& view, double samples_per_second) {
  std::vector<std::string> parts;
  if (view.workers_joined < view.workers_expected) {
    parts.push_back(absl::StrCat(view.workers_joined, " of ", view.workers_expected, " workers"));
  }
  if (view.phase == v1::PHASE_EVALUATING && view.evaluated_total > 0) {
    parts.push_back(absl::StrCat(WithThousands(view.evaluated), " of ", WithThousands(view.evaluated_total)));
  } else if (view.samples_total > 0) {
    parts.push_back(absl::StrCat(WithThousands(view.samples), " of ", WithThousands(view.samples_total), " samples"));
  } else if (view.samples > 0) {
    parts.push_back(absl::StrCat(WithThousands(view.samples), " samples"));
  }
  if (view.samples > 0 && view.phase <= v1::PHASE_TRAINING) {
    if (samples_per_second > 0) parts.push_back(absl::StrCat(WithThousands(std::llround(samples_per_second)), "/s"));
    parts.push_back(absl::StrFormat("loss %.4f", view.loss));
    parts.push_back(absl::StrFormat("delay %.1f", view.delay));
    if (const std::optional<double> left = SecondsLeft(view, samples_per_second)) {
      const int64_t seconds = std::llround(std::ceil(*left));
      parts.push_back(absl::StrFormat("%d:%02d left", seconds / 60, seconds % 60));
    }
  }
  if (!view.waiting_for.empty()) parts.push_back(absl::StrCat("waiting for ", view.waiting_for));
  return parts;
}

}  // namespace

bool OnDevice(const std::string& device) { return !device.empty() && device != "cpu"; }

float DelayOf(const v1::WorkerProgress& progress) {
  float greatest = 0;
  for (const v1::DelaySummary& delay : progress.delays()) greatest = std::max(greatest, delay.mean());
  return greatest;
}

ClusterView ViewOf(const v1::StatusResponse& status, uint32_t workers_expected) {
  ClusterView view;
  view.workers_expected = workers_expected;
  view.phase = v1::PHASE_FINISHED;
  uint32_t training = 0;
  bool totals_known = true;
  for (const v1::MemberStatus& worker : status.cluster().workers()) {
    const v1::WorkerProgress& progress = worker.progress();
    ++view.workers_joined;
    view.phase = std::min(view.phase, progress.phase());
    view.samples += progress.samples();
    view.samples_total += progress.samples_total();
    totals_known &= progress.samples_total() > 0;
    view.evaluated += progress.evaluated();
    view.evaluated_total += progress.evaluated_total();
    if (progress.clock() > 0) {
      ++training;
      view.loss += progress.loss();
      view.delay += DelayOf(progress);
    }
    if (view.waiting_for.empty()) view.waiting_for = progress.waiting_for();
  }
  if (view.workers_joined < workers_expected) {
    view.phase = std::min(view.phase, view.workers_joined == 0 ? v1::PHASE_JOINED : v1::PHASE_LOADING);
    totals_known = false;
  }
  if (!totals_known) view.samples_total = 0;
  // Which samples a worker gets is not known before.
  if (status.cluster().has_ranges()) view.samples_total = status.cluster().ranges().plan().samples();
  if (training > 0) {
    view.loss /= training;
    view.delay /= training;
  }
  return view;
}

void SampleRate::Observe(double seconds, uint64_t count) {
  if (count == 0) window_.clear();  // The time before the first is nobody's speed.
  window_.emplace_back(seconds, count);
  while (window_.size() > 2 && window_.front().first < seconds - kRateWindowSeconds) window_.pop_front();
}

double SampleRate::per_second() const {
  if (window_.size() < 2) return 0;
  const double seconds = window_.back().first - window_.front().first;
  if (seconds <= 0 || window_.back().second < window_.front().second) return 0;
  return (window_.back().second - window_.front().second) / seconds;
}

std::string ValidationLine(const v1::Validation& validation, bool best) {
  const v1::ValidationMetric& judged_by = validation.judged_by();
  return absl::StrFormat("validation %d: %s %.4f%s; at %s samples, %.1f s", validation.number(), judged_by.name(),
                         judged_by.value(), best ? ", the best so far" : "", WithThousands(validation.samples()),
                         validation.seconds());
}

std::string ValidationsText(const v1::ValidationState& state) {
  if (state.results().empty()) return "";
  const auto metric = [](const v1::Validation& validation) {
    return absl::StrFormat("%s %.4f (validation %d)", validation.judged_by().name(), validation.judged_by().value(),
                           validation.number());
  };
  const v1::Validation& last = state.results(state.results_size() - 1);
  std::string text = absl::StrCat("last ", metric(last));
  if (state.has_best()) absl::StrAppend(&text, ", best ", metric(state.best()));
  if (!state.stopped().empty()) absl::StrAppend(&text, "; training ends early: ", state.stopped());
  if (!state.kept().empty()) absl::StrAppend(&text, "; the best is kept in ", state.kept());
  return text;
}

uint64_t BatchesInAll(const v1::RangeState& ranges) {
  return ranges.batches_total() > 0 ? ranges.batches_total() : ranges.plan().batches();
}

std::string RangesText(const v1::ClusterStatus& cluster) {
  if (!cluster.has_ranges() || cluster.ranges().plan().epoch_batches() == 0) return "";
  const v1::RangeState& ranges = cluster.ranges();
  const v1::RangePlan& plan = ranges.plan();
  const auto lives = [&cluster](uint64_t holder) {
    return std::any_of(cluster.workers().begin(), cluster.workers().end(), [holder](const v1::MemberStatus& worker) {
      return worker.incarnation() == holder && worker.alive();
    });
  };
  uint64_t done = ranges.batches_closed(), held = 0;
  for (const v1::RangeLease& range : ranges.open()) {
    done += range.done();
    held += lives(range.holder());
  }
  const uint64_t batches = BatchesInAll(ranges);
  const uint64_t epochs = (batches + plan.epoch_batches() - 1) / plan.epoch_batches();
  std::string text = absl::StrFormat(
      "%sepoch %s of %s, %.0f %% of %s batches", plan.run().empty() ? "" : absl::StrCat("run ", plan.run(), ": "),
      WithThousands(std::min(epochs, 1 + done / plan.epoch_batches())), WithThousands(epochs),
      std::floor(100.0 * static_cast<double>(done) / static_cast<double>(batches)), WithThousands(batches));
  if (held > 0) absl::StrAppend(&text, "; ", held, held == 1 ? " range" : " ranges", " with workers");
  if (const uint64_t free = ranges.open_size() - held; free > 0) {
    absl::StrAppend(&text, "; ", free, free == 1 ? " range waits" : " ranges wait", " for a worker");
  }
  if (ranges.leased_again() > 0) absl::StrAppend(&text, "; ", WithThousands(ranges.leased_again()), " given again");
  if (ranges.over()) text += "; over";
  return text;
}

std::string PhaseText(const ClusterView& view) {
  switch (view.phase) {
    case v1::PHASE_JOINED:
      return "starting";
    case v1::PHASE_LOADING:
      return "loading data";
    case v1::PHASE_TRAINING:
      return "training";
    case v1::PHASE_WAITING:
      return "waiting";
    case v1::PHASE_EVALUATING:
      return "evaluating";
    case v1::PHASE_FINISHED:
      return "finished";
    default:
      return absl::StrCat("phase ", view.phase);  // Of a newer worker.
  }
}

std::optional<double> SecondsLeft(const ClusterView& view, double samples_per_second) {
  if (view.samples_total == 0 || samples_per_second <= 0) return std::nullopt;
  return (view.samples_total - std::min(view.samples, view.samples_total)) / samples_per_second;
}

std::string ProgressLine(const ClusterView& view, double samples_per_second) {
  std::string text = PhaseText(view);
  if (view.phase == v1::PHASE_TRAINING && view.samples_total > 0) {
    absl::StrAppendFormat(&text, " %.0f %%", 100 * ShareDone(view));
  }
  const std::vector<std::string> details = Details(view, samples_per_second);
  return details.empty() ? text : absl::StrCat(text, "  ", absl::StrJoin(details, "  "));
}

std::string ProgressBar(const ClusterView& view, double samples_per_second, size_t width) {
  const double done = ShareDone(view);
  const std::string details = absl::StrJoin(Details(view, samples_per_second), "  ");
  const std::string phase = absl::StrFormat("%-12s", PhaseText(view));
  const std::string percent = absl::StrFormat("%3.0f %%", 100 * done);
  const size_t rest = phase.size() + percent.size() + details.size() + 8;
  const size_t columns = rest >= width ? 0 : std::min(kBarColumnsMax, width - rest);
  std::string bar;
  if (columns >= 5) {
    const size_t filled = std::llround(done * columns);
    bar = absl::StrCat("[", std::string(filled, '#'), std::string(columns - filled, '.'), "] ");
  }
  return absl::StrCat(phase, " ", bar, percent, "  ", details);
}

}  // namespace lodestone::psctl
