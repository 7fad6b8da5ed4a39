// A ps's status for people.
#pragma once

#include <string>
#include <vector>

#include "proto/admin.pb.h"

namespace lodestone {

// Rows of cells as lines of aligned columns; the first row is the heading. Cells that are numbers in every row below
// the heading are aligned right.
std::string AlignedTable(const std::vector<std::vector<std::string>>& rows);

// 1536 as "1.5 KiB".
std::string WithUnit(uint64_t bytes);

// All that `status` holds, section by section; empty sections are left out.
std::string StatusText(const v1::StatusResponse& status);

}  // namespace lodestone
