// check_history: judges recorded histories, or rewrites the operations on one row as Knossos' events.
#include <cstdio>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/status/statusor.h"
#include "common/base/version.h"
#include "common/config/options.h"
#include "tests/chaos/history.h"
#include "tests/chaos/judgement.h"

namespace lodestone::chaos {
namespace {

absl::StatusOr<History> Load(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError("cannot be read");
  return ParseHistory(text.str());
}

int Main(int argc, char** argv) {
  std::vector<std::string> paths;
  int64_t edn_row = -1;
  CLI::App app("Judges histories that tools/chaos --history-dir has recorded.", "check_history");
  app.set_version_flag("--version", "check_history " + VersionText());
  app.add_option("FILE", paths, "Histories, as JSON lines")->required();
  app.add_option("--edn", edn_row, "Print the operations on this row as events for Knossos instead")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()));
  app.footer("Exit codes: 0 as it must be; 1 not; 2 wrong command line or file.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  Judgement judgement;
  for (const std::string& path : paths) {
    const absl::StatusOr<History> history = Load(path);
    if (!history.ok()) {
      std::fprintf(stderr, "check_history: %s: %s\n", path.c_str(), std::string(history.status().message()).c_str());
      return kExitUsage;
    }
    if (edn_row >= 0) {
      std::fputs(ToEdn(*history, static_cast<uint64_t>(edn_row)).c_str(), stdout);
    } else {
      judgement.Add(Judge(*history));
    }
  }
  if (edn_row >= 0) return 0;
  std::fputs(ToText(judgement).c_str(), stdout);
  return judgement.ok() ? 0 : 1;
}

}  // namespace
}  // namespace lodestone::chaos

int main(int argc, char** argv) { return lodestone::chaos::Main(argc, argv); }
