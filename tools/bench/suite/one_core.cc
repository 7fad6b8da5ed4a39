// optimizer, index: the programs optimizer_benchmark and index_benchmark, whose repetitions are runs.
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tools/bench/harness/local_ps.h"
#include "tools/bench/harness/programs.h"
#include "tools/bench/suite/suites.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone::bench {
namespace {

absl::Status RunToEnd(const std::string& name, const std::vector<std::string>& argv) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<psctl::Child> child, psctl::Child::Start(name, argv));
  while (!child->Reap([](absl::string_view) {})) {
    pollfd output = {child->output_fd(), POLLIN, 0};
    poll(&output, 1, 10);
    child->ReadOutput([](absl::string_view) {});
  }
  if (child->succeeded()) return absl::OkStatus();
  return absl::InternalError(child->Outcome());
}

absl::Status RunProgram(const Options& options, const std::string& bench, const AddRow& add) {
  const std::string name = bench + "_benchmark";
  const std::string program = absl::StrCat(options.benchmark_folder, "/", name);
  if (access(program.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(program, ": no such program; tools/bench/run builds it"));
  }
  std::fprintf(stderr, "bench: %s: all of %s\n", bench.c_str(), name.c_str());
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<TemporaryFolder> folder, TemporaryFolder::Create());
  const std::string result = folder->File("result.json");
  LODESTONE_RETURN_IF_ERROR(RunToEnd(
      name, {program, "--benchmark_out=" + result, "--benchmark_out_format=json",
             absl::StrCat("--benchmark_repetitions=", options.runs), "--benchmark_enable_random_interleaving=true",
             absl::StrCat("--benchmark_min_time=", options.quick ? 0.005 : 1e-3 * options.window_ms / 4)}));
  std::ifstream file(result);
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<Row> rows,
                             RowsOfBenchmark(bench, std::string(std::istreambuf_iterator<char>(file), {})));
  for (const Row& row : rows) add(row);
  return absl::OkStatus();
}

}  // namespace

absl::Status RunOptimizer(const Options& options, const AddRow& add) { return RunProgram(options, "optimizer", add); }

absl::Status RunIndex(const Options& options, const AddRow& add) { return RunProgram(options, "index", add); }

}  // namespace lodestone::bench
