#include "common/config/options.h"

#include <iostream>
#include <sstream>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "common/base/version.h"
#include "common/config/config.h"

namespace lodestone {
namespace {

constexpr char kExamples[] = R"(
The configuration is one YAML file for the whole cluster; proto/config.proto describes every field, and
configs/lodestone.schema.json lets an editor complete them. --set overrides single fields:
  --set train.epochs=3
  --set data.train='part-*.csv'            a list of one
  --set 'data.train=[a.csv, b.csv]'        a list
  --set data.label_map.spam=1              one entry of a map
  --set model.optimizer.adam=              a message that is present, with its defaults
  --set 'model.optimizer={adam: {beta1: 0.8}, learning_rate: 0.001}'
)";

// The lines of `text`, each with the program's name before it.
std::string ErrorText(const std::string& program, const std::string& text) {
  std::ostringstream out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) out << program << ": " << line << "\n";
  return out.str();
}

}  // namespace

std::optional<int> ParseOptions(int argc, const char* const* argv, const OptionsSpec& spec, ProcessOptions* out) {
  CLI::App app(spec.description, spec.program);
  app.footer(std::string(kExamples) + (spec.examples.empty() ? "" : "\nExamples:\n" + spec.examples));
  std::vector<std::string> sets;
  bool check = false;
  bool log_json = false;
  app.set_version_flag("--version", spec.program + " " + VersionText(), "Print version and commit, and exit.");
  app.add_option("--config", out->config_path, "The configuration, a YAML file.")->required()->type_name("FILE");
  app.add_option("--set", sets, "Override one field of the configuration; repeatable, the last one wins.")
      ->type_name("PATH=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_flag("--check", check, "Validate, print the effective configuration and exit.");
  app.add_flag("--log-json", log_json, "Write logs as one JSON object per line (as log.json does).");
  for (const StringFlag& flag : spec.flags) {
    app.add_option(flag.name, *flag.value, flag.help)->type_name(flag.placeholder);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help and --version.
    return app.exit(e, std::cout, std::cerr);
  } catch (const CLI::Error& e) {
    std::cerr << ErrorText(spec.program, e.what()) << "Try " << spec.program << " --help.\n";
    return kExitUsage;
  }
  if (log_json) sets.push_back("log.json=true");
  absl::StatusOr<v1::Config> config =
      LoadConfig(out->config_path, sets, spec.trains ? ConfigUse::kTraining : ConfigUse::kAny);
  if (!config.ok()) {
    std::cerr << ErrorText(spec.program, std::string(config.status().message()));
    return kExitUsage;
  }
  out->config = *std::move(config);
  if (check) {
    std::cout << PrintConfig(out->config) << std::flush;
    return 0;
  }
  return std::nullopt;
}

}  // namespace lodestone
