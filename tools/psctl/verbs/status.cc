#include "tools/psctl/verbs/status.h"

#include <unistd.h>

#include <cstdio>

#include "absl/status/statusor.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/status_table.h"

namespace lodestone::psctl {

int RunStatus(const StatusOptions& options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage("status", address.message());
  }
  const absl::StatusOr<v1::StatusResponse> status = FetchStatus(options.address, options.timeout_ms);
  if (!status.ok()) return Fail("status", status.status());
  const Painter paint(WantsColor(STDOUT_FILENO));
  std::fputs((options.json ? IndentedJson(JsonOf(*status)) : StatusText(*status, paint)).c_str(), stdout);
  return kExitDone;
}

}  // namespace lodestone::psctl
