#include "server/auth/quota.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lodestone::server {

namespace {

TokenBucket PerSecond(uint64_t rate, int64_t now_ms) {
  return TokenBucket(static_cast<double>(rate), static_cast<double>(rate), now_ms);
}

}  // namespace

Quota::Quota(const v1::Identity& identity, const TimeSource* time)
    : identity_(identity),
      time_(time),
      bytes_(PerSecond(identity.push_bytes_per_second_max(), time->NowMs())),
      pushes_(PerSecond(identity.pushes_per_second_max(), time->NowMs())) {}

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
  bytes_.Take(static_cast<double>(bytes));
  pushes_.Take(1);
  return std::min(kQuotaDelayMsMax, std::max(bytes_.DebtMs(now_ms), pushes_.DebtMs(now_ms)));
}

}  // namespace lodestone::server
