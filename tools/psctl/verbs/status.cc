#include "tools/psctl/verbs/status.h"

#include <unistd.h>

#include <cstdio>
#include <memory>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/flags.h"
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

const Verb kStatusVerb = {"status", "Shows all that one ps knows",
                          "  psctl status --address 127.0.0.1:7000                  what that ps knows, as tables\n"
                          "  psctl status --config /etc/lodestone/cluster.yaml      with the token and certificates of "
                          "its section security\n",
                          [](CLI::App* command) -> Verb::Run {
                            const auto options = std::make_shared<StatusOptions>();
                            AddAddress(command, &options->address,
                                       "host:port of the ps; the one that serves the coordinator knows the workers");
                            AddJson(command, &options->json, "Prints admin.proto's StatusResponse as JSON");
                            AddTimeout(command, &options->timeout_ms);
                            return [options] { return RunStatus(*options); };
                          }};

}  // namespace lodestone::psctl
