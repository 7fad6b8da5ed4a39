// Numbers for people to read, as runs.
//
// Thread safety: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace lodestone {

// {3, 5, 6, 7} as "3, 5-7"; with more than `runs_max` runs, "3 and 3 more". REQUIRES: ascending.
std::string NumbersText(const std::vector<uint32_t>& numbers, size_t runs_max = SIZE_MAX);

}  // namespace lodestone
