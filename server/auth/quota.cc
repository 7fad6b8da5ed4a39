#include "server/auth/quota.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace lodestone::server {

int64_t TokenBucket::DebtMs(int64_t now_ms) {
  if (rate_ == 0) return 0;
  level_ = std::min(rate_, level_ + rate_ * static_cast<double>(now_ms - filled_ms_) / 1000);
  filled_ms_ = now_ms;
  return level_ >= 0 ? 0 : static_cast<int64_t>(std::ceil(-level_ * 1000 / rate_));
}

Quota::Quota(const v1::Identity& identity, const TimeSource* time)
    : identity_(identity),
      time_(time),
      bytes_(identity.push_bytes_per_second_max(), time->NowMs()),
      pushes_(identity.pushes_per_second_max(), time->NowMs()) {}

absl::StatusOr<int64_t> Quota::Take(uint64_t bytes) {
  MutexLock lock(&mu_);
  const int64_t now_ms = time_->NowMs();
  const int64_t owed_ms = std::max(bytes_.DebtMs(now_ms), pushes_.DebtMs(now_ms));
  if (owed_ms > kQuotaDelayMsMax) {
    const bool by_bytes = bytes_.DebtMs(now_ms) == owed_ms;
    return absl::ResourceExhaustedError(
        absl::StrCat("`", identity_.name(), "` has pushed ", owed_ms, " ms ahead of its ",
                     by_bytes ? absl::StrCat("push_bytes_per_second_max of ", identity_.push_bytes_per_second_max())
                              : absl::StrCat("pushes_per_second_max of ", identity_.pushes_per_second_max()),
                     " on this ps; try again later"));
  }
  bytes_.Take(bytes);
  pushes_.Take(1);
  return std::min(kQuotaDelayMsMax, std::max(bytes_.DebtMs(now_ms), pushes_.DebtMs(now_ms)));
}

}  // namespace lodestone::server
