#include "common/base/retry.h"

#include <algorithm>

#include "common/base/limits.h"
#include "common/base/random.h"

namespace lodestone {

bool IsRetryable(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
      return true;
    default:
      return false;
  }
}

int64_t Backoff::NextMs() {
  const int64_t ceiling = std::min(limits::kRetryBackoffMaxMs, limits::kRetryBackoffMinMs * 2 << doublings_);
  if (ceiling < limits::kRetryBackoffMaxMs) ++doublings_;
  return ceiling / 2 + static_cast<int64_t>(RandomUniform(seed_, drawn_++) * static_cast<double>(ceiling / 2));
}

std::optional<int64_t> Retry::Next(absl::StatusCode code) {
  if (!IsRetryable(code)) return std::nullopt;
  const int64_t pause_ms = backoff_.NextMs();
  if (elapsed_ms() + pause_ms > policy_.retry_timeout_ms) return std::nullopt;
  ++attempts_;
  return pause_ms;
}

}  // namespace lodestone
