#include "tools/psctl/verbs/check.h"

#include <cstdio>

#include "absl/status/statusor.h"
#include "common/config/config.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"

namespace lodestone::psctl {

int RunCheck(const CheckOptions& options) {
  const absl::StatusOr<v1::Config> config = LoadConfig(options.path, options.sets);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", std::string(config.status().message()).c_str());
    return kExitUsage;
  }
  std::fputs((options.json ? IndentedJson(JsonOf(*config)) : PrintConfig(*config)).c_str(), stdout);
  return kExitDone;
}

}  // namespace lodestone::psctl
