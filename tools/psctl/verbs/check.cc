#include "tools/psctl/verbs/check.h"

#include <cstdio>
#include <memory>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "common/config/config.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/data_check.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {

int RunCheck(const CheckOptions& options) {
  absl::StatusOr<v1::Config> config = LoadConfig(options.path, options.sets);
  // The file of a ps alone need not say what is trained.
  const bool trains = config.ok() && (config->has_model() || config->has_data() || config->has_train());
  if (trains || options.data) config = LoadConfig(options.path, options.sets, ConfigUse::kTraining);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", std::string(config.status().message()).c_str());
    return kExitUsage;
  }
  if (options.data) return RunDataCheck(*config, options.rows_max, options.json);
  std::fputs((options.json ? IndentedJson(JsonOf(*config)) : PrintConfig(*config)).c_str(), stdout);
  return kExitDone;
}

const Verb kCheckVerb = {
    "check", "Checks a configuration and prints it with all defaults",
    "  psctl check configs/local.yaml                         is this configuration right, and "
    "what are its defaults?\n"
    "  psctl check cluster.yaml --data                        is its data right? (looks at the first "
    "rows)\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<CheckOptions>();
      command->add_option("CONFIG", options->path, "YAML file")->required()->type_name("FILE");
      AddSet(command, &options->sets);
      AddJson(command, &options->json, "Prints config.proto's Config as JSON");
      CLI::Option* data =
          command->add_flag("--data", options->data,
                            "Looks at the first rows of the data instead: columns, labels, keys, what looks wrong");
      command->add_option("--rows", options->rows_max, "Rows that --data reads, at most")
          ->type_name("NUMBER")
          ->check(CheckCount)
          ->needs(data);
      return [options] { return RunCheck(*options); };
    }};

}  // namespace lodestone::psctl
