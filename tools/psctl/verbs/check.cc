#include "tools/psctl/verbs/check.h"

#include <cstdio>
#include <memory>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "common/config/config.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/flags.h"

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

const Verb kCheckVerb = {"check", "Checks a configuration and prints it with all defaults",
                         "  psctl check configs/local.yaml                         is this configuration right, and "
                         "what are its defaults?\n",
                         [](CLI::App* command) -> Verb::Run {
                           const auto options = std::make_shared<CheckOptions>();
                           command->add_option("CONFIG", options->path, "YAML file")->required()->type_name("FILE");
                           AddSet(command, &options->sets);
                           AddJson(command, &options->json, "Prints config.proto's Config as JSON");
                           return [options] { return RunCheck(*options); };
                         }};

}  // namespace lodestone::psctl
