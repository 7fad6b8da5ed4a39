#include "tools/psctl/text/duration.h"

#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace lodestone::psctl {
namespace {

// The text with "m" for "min", as YAML's settings have it.
std::string WithMinutes(absl::string_view text) {
  std::string out(text);
  for (size_t at = out.find("min"); at != std::string::npos; at = out.find("min", at + 1)) {
    if (at + 3 == out.size() || !absl::ascii_isalpha(static_cast<unsigned char>(out[at + 3]))) out.erase(at + 1, 2);
  }
  return out;
}

}  // namespace

absl::StatusOr<int> ParseMillis(absl::string_view text) {
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds) && std::isfinite(seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(WithMinutes(text), &duration)) {
    return absl::InvalidArgumentError(absl::StrCat("`", text, "` is no time; write 5s, 250ms, 1m30s, or seconds"));
  }
  if (duration < absl::Milliseconds(1) || duration > absl::Hours(24)) {
    return absl::InvalidArgumentError(absl::StrCat("`", text, "` is not between 1ms and 24h"));
  }
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

}  // namespace lodestone::psctl
