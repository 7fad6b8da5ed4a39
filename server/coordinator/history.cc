#include "server/coordinator/history.h"

#include <algorithm>
#include <utility>

namespace lodestone::server {
namespace {

// The mean of two values, weighted by times; 0 where there was no time.
double Mean(double first, int64_t first_ms, double second, int64_t second_ms) {
  const int64_t ms = first_ms + second_ms;
  if (ms <= 0) return 0;
  return (first * static_cast<double>(first_ms) + second * static_cast<double>(second_ms)) / static_cast<double>(ms);
}

}  // namespace

std::optional<int64_t> History::NextMs(bool works) const {
  if (!works && was_idle_) return std::nullopt;
  return added_ms_ + period_ms_;
}

History::Stretch History::Join(const Stretch& first, const Stretch& second) {
  const v1::HistoryPoint &a = first.point, &b = second.point;
  Stretch joined = second;  // What is of its end.
  joined.ms = first.ms + second.ms;
  joined.trained_ms = first.trained_ms + second.trained_ms;
  joined.point.set_samples_per_second(Mean(a.samples_per_second(), first.ms, b.samples_per_second(), second.ms));
  joined.point.set_pushes_per_second(Mean(a.pushes_per_second(), first.ms, b.pushes_per_second(), second.ms));
  const auto trained = [&](float of_first, float of_second) {
    return static_cast<float>(Mean(of_first, first.trained_ms, of_second, second.trained_ms));
  };
  joined.point.set_loss(trained(a.loss(), b.loss()));
  joined.point.set_staleness_pushes(trained(a.staleness_pushes(), b.staleness_pushes()));
  if (second.metric_ms == 0) {
    joined.point.set_metric_name(a.metric_name());
    joined.point.set_metric(a.metric());
    joined.metric_ms = first.metric_ms;
  } else if (a.metric_name() == b.metric_name()) {  // Of another metric the later counts.
    joined.point.set_metric(Mean(a.metric(), first.metric_ms, b.metric(), second.metric_ms));
    joined.metric_ms = first.metric_ms + second.metric_ms;
  }
  return joined;
}

void History::Add(const Moment& moment) {
  const int64_t now_ms = time_->NowMs();
  Stretch next;
  next.point = moment.point;
  next.point.set_time_ms(static_cast<uint64_t>(now_ms));
  // Of an idle time nothing is known: what begins after it has the length of the others.
  next.ms = was_idle_ ? period_ms_ : std::max<int64_t>(1, now_ms - added_ms_);
  next.trained_ms = moment.trains ? next.ms : 0;
  if (!moment.trains) {
    next.point.clear_loss();
    next.point.clear_staleness_pushes();
    next.point.clear_metric_name();
  }
  if (next.point.metric_name().empty()) {
    next.point.clear_metric();
  } else {
    next.metric_ms = next.ms;
  }
  added_ms_ = now_ms;
  const bool skip = was_idle_ && moment.point.workers() == 0;
  was_idle_ = moment.point.workers() == 0;
  if (skip) return;
  stretches_.push_back(std::move(next));
  if (stretches_.size() <= limits::kHistoryPointsMax) return;
  std::vector<Stretch> joined;
  for (size_t i = 0; i < stretches_.size(); i += 2) {
    joined.push_back(i + 1 < stretches_.size() ? Join(stretches_[i], stretches_[i + 1]) : stretches_[i]);
  }
  stretches_ = std::move(joined);
  period_ms_ *= 2;
}

v1::HistoryResponse History::Tell() const {
  v1::HistoryResponse response;
  for (const Stretch& stretch : stretches_) *response.add_points() = stretch.point;
  return response;
}

}  // namespace lodestone::server
