#include "server/coordinator/validations.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/limits.h"

namespace lodestone::server {
namespace {

bool IsBetter(const v1::Validation& result, const v1::ValidationState& state) {
  const double value = result.judged_by().value();
  if (!std::isfinite(value)) return false;
  if (!state.has_best()) return true;
  const double best = state.best().judged_by().value();
  return result.lower_is_better() ? value < best : value > best;
}

size_t MetricsBytes(const v1::Validation& result) {
  size_t bytes = 0;
  for (const v1::ValidationMetric& metric : result.metrics()) bytes += metric.ByteSizeLong();
  return bytes;
}

}  // namespace

bool Validations::Claim(uint64_t number) {
  if (number <= state_.claimed()) return false;
  state_.set_claimed(number);
  ++changes_;
  return true;
}

bool Validations::Report(const v1::Validation& result, uint32_t patience) {
  const bool is_known = std::any_of(state_.results().begin(), state_.results().end(),
                                    [&](const v1::Validation& known) { return known.number() == result.number(); });
  if (is_known) return state_.best().number() == result.number();
  ++changes_;
  v1::Validation& added = *state_.add_results();
  added = result;
  added.clear_versions();
  const int more = state_.results_size() - static_cast<int>(limits::kValidationsMax);
  if (more > 0) state_.mutable_results()->DeleteSubrange(0, more);
  const bool is_better = IsBetter(result, state_);
  if (is_better) *state_.mutable_best() = result;
  ShortenMetrics();
  if (is_better) {
    state_.set_without_improvement(0);
    return true;
  }
  state_.set_without_improvement(state_.without_improvement() + 1);
  if (patience == 0 || state_.without_improvement() < patience || !state_.stopped().empty()) return false;
  std::string best = "none had a number";
  if (state_.has_best()) {
    best = absl::StrFormat("the best was %.6g, of validation %d", state_.best().judged_by().value(),
                           state_.best().number());
  }
  state_.set_stopped(absl::StrCat(result.judged_by().name(), " has not improved in ", state_.without_improvement(),
                                  state_.without_improvement() == 1 ? " validation" : " validations", ": ", best));
  return false;
}

void Validations::ShortenMetrics() {
  size_t bytes = MetricsBytes(state_.best());
  for (int i = state_.results_size() - 1; i >= 0; --i) {
    v1::Validation& result = *state_.mutable_results(i);
    if (result.number() == state_.best().number()) continue;
    bytes += MetricsBytes(result);
    if (bytes <= kMetricsBytesMax) continue;
    result.clear_metrics();
    *result.add_metrics() = result.judged_by();
  }
}

void Validations::NoteKept(const v1::KeptValidation& kept) {
  if (kept.checkpoint() == state_.kept()) return;
  ++changes_;
  state_.set_kept_before(state_.kept());
  state_.set_kept(kept.checkpoint());
}

void Validations::Reset() {
  if (state_.ByteSizeLong() == 0) return;
  ++changes_;
  state_.Clear();
}

}  // namespace lodestone::server
