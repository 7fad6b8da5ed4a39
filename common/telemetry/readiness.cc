#include "common/telemetry/readiness.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lodestone {

std::string WhyNotReady(const v1::StatusResponse& status) {
  std::vector<std::string> reasons;
  if (!status.storage().log_error().empty()) reasons.push_back(status.storage().log_error());
  for (const v1::WaitStatus& wait : status.waits()) reasons.push_back(absl::StrCat(wait.who(), ": ", wait.what()));
  return absl::StrJoin(reasons, "; ");
}

}  // namespace lodestone
