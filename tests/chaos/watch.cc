#include "tests/chaos/watch.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace lodestone::chaos {
namespace {

constexpr int kTickMs = 20;

}  // namespace

absl::Status Watch::Tick(int ms) {
  cluster_->Pump(ms);
  const std::vector<std::string> deaths = cluster_->TakeDeaths();
  if (!deaths.empty()) return absl::InternalError(absl::StrJoin(deaths, "; "));
  if (interrupts() > interrupts_taken_) return absl::CancelledError("interrupted");
  return options_.on_tick ? options_.on_tick() : absl::OkStatus();
}

absl::Status Watch::Await(const std::function<bool()>& condition, const std::string& what) {
  const int64_t started_ms = NowMs();
  while (!condition()) {
    if (NowMs() - started_ms > options_.patience_ms) {
      return absl::DeadlineExceededError(absl::StrCat("waited ", options_.patience_ms, " ms in vain for ", what));
    }
    LODESTONE_RETURN_IF_ERROR(Tick(kTickMs));
  }
  return absl::OkStatus();
}

absl::Status Watch::Pass(int64_t ms) {
  const int64_t until_ms = NowMs() + ms;
  do {
    LODESTONE_RETURN_IF_ERROR(Tick(static_cast<int>(std::clamp<int64_t>(until_ms - NowMs(), 0, kTickMs))));
  } while (NowMs() < until_ms);
  return absl::OkStatus();
}

}  // namespace lodestone::chaos
