// The benchmark's rows for people.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/harness/row.h"

namespace lodestone::bench {

// An aligned table; columns that no row fills are left out. Rates and ratios show their range over the runs.
std::string ToTable(const std::vector<Row>& rows);

// The same as Markdown, one table for each bench, below a line that names the machine.
std::string ToMarkdown(const Report& report);

}  // namespace lodestone::bench
