#include "tools/psctl/text/duration.h"

#include <cmath>
#include <string>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/config/yaml_scalar.h"

namespace lodestone::psctl {

absl::StatusOr<int> ParseMillis(absl::string_view text) {
  absl::Duration duration;
  double seconds = 0;
  // As settings have it, or of several units.
  const auto setting = ParseInteger(std::string_view(text.data(), text.size()), Units::kMilliseconds);
  if (absl::SimpleAtod(text, &seconds) && std::isfinite(seconds)) {
    duration = absl::Seconds(seconds);
  } else if (setting.ok() && !setting->negative) {
    duration = absl::Milliseconds(setting->magnitude);
  } else if (!absl::ParseDuration(text, &duration)) {
    return absl::InvalidArgumentError(absl::StrCat("`", text, "` is no time; write 5s, 250ms, 1m30s, or seconds"));
  }
  if (duration < absl::Milliseconds(1) || duration > absl::Hours(24)) {
    return absl::InvalidArgumentError(absl::StrCat("`", text, "` is not between 1ms and 24h"));
  }
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

}  // namespace lodestone::psctl
