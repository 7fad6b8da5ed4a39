#include "server/table/norm_guard.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace lodestone::server {

absl::Status NormGuard::Judge(std::string_view table, double mean_square) const {
  double typical = 0;
  {
    MutexLock lock(&mu_);
    if (taken_ < kPushesUnjudged || mean_square_ == 0) return absl::OkStatus();
    typical = std::sqrt(mean_square_);
  }
  const double rms = std::sqrt(mean_square);
  const double factor = norm_max_factor_.load(std::memory_order_relaxed);
  if (rms <= factor * typical) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrFormat(
      "the gradients of table `%s` have a root mean square of %.3g, %.3g times the usual %.3g; guard.norm_max_factor "
      "allows %.3g times",
      std::string(table), rms, rms / typical, typical, factor));
}

void NormGuard::Take(double mean_square) {
  MutexLock lock(&mu_);
  ++taken_;
  mean_square_ += (mean_square - mean_square_) / static_cast<double>(std::min(taken_, kPushesRemembered));
}

}  // namespace lodestone::server
