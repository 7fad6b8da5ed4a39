// Parser and printer of durations such as 250ms and 5s.
//
// Thread safety: pure.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lodestone::psctl {

// "250ms", "5s", "5min", "1m30s", "1h", or seconds: "5", "0.5"; as milliseconds. INVALID_ARGUMENT for others, and for
// times below 1 ms or beyond a day.
absl::StatusOr<int> ParseMillis(absl::string_view text);

}  // namespace lodestone::psctl
