#include "tools/psctl/verbs/flags.h"

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tools/psctl/text/duration.h"
#include "tools/psctl/text/exit_code.h"

namespace lodestone::psctl {

CLI::Option* AddAddress(CLI::App* command, std::string* address, const std::string& help) {
  return command->add_option("--address", *address, help)->type_name("HOST:PORT")->capture_default_str();
}

void AddJson(CLI::App* command, bool* json, const std::string& help) { command->add_flag("--json", *json, help); }

CLI::Option* AddTimeout(CLI::App* command, int* timeout_ms, const std::string& help) {
  const auto take = [timeout_ms](const std::string& text) {
    const absl::StatusOr<int> parsed = ParseMillis(text);
    if (!parsed.ok()) throw CLI::ValidationError("--timeout", std::string(parsed.status().message()));
    *timeout_ms = *parsed;
  };
  return command->add_option_function<std::string>("--timeout", take, help)
      ->type_name("TIME")
      ->default_str(MillisText(*timeout_ms));
}

std::string CheckCount(const std::string& text) {
  uint64_t count = 0;
  return absl::SimpleAtoi(text, &count) && count > 0
             ? ""
             : absl::StrCat("expected a whole number, 1 or more, got `", text, "`");
}

void AddSet(CLI::App* command, std::vector<std::string>* sets) {
  command->add_option("--set", *sets, "Overrides one field: a.b=VALUE")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
}

}  // namespace lodestone::psctl
