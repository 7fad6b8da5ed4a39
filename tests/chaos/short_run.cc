#include "tests/chaos/short_run.h"

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/telemetry/log.h"
#include "gtest/gtest.h"
#include "proto/config.pb.h"

namespace lodestone::chaos {

RunOptions ShortOptions(uint64_t seed, std::vector<FaultKind> kinds, uint64_t faults) {
  RunOptions options;
  options.seed = seed;
  options.kinds = std::move(kinds);
  options.faults = faults;
  options.gap_pushes = 50;
  options.calm_pushes = 100;
  return options;
}

Report RunShortly(const std::string& name, RunOptions options) {
  v1::LogConfig log;
  log.set_level(v1::LogConfig::ERROR);
  InitLog(log, "chaos", "");
  const std::string programs = absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/");
  options.ps_binary = programs + "server/ps";
  options.worker_binary = programs + "worker/worker";
  options.psctl_binary = programs + "tools/psctl/psctl";
  options.folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name, "-", options.seed);
  std::filesystem::remove_all(options.folder);
  std::filesystem::create_directories(options.folder);
  testing::Test::RecordProperty("seed", std::to_string(options.seed));
  Report report = ChaosRun(std::move(options)).Run();
  std::cout << ToTable(report);
  if (!report.ok()) std::cout << absl::StrJoin(report.schedule, "\n") << std::endl;
  return report;
}

}  // namespace lodestone::chaos
