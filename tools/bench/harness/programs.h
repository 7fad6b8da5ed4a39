// Results of programs that are written with Google's benchmark library, as rows.
//
// Thread safety: pure function.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/harness/row.h"

namespace lodestone::bench {

// One row for each benchmark in `json` (--benchmark_out_format=json), its repetitions as runs, in million items per
// second (million iterations where it counts no items). The limit of "X/adam/ARGS" is "PlainAdam/ARGS".
absl::StatusOr<std::vector<Row>> RowsOfBenchmark(const std::string& bench, const std::string& json);

}  // namespace lodestone::bench
