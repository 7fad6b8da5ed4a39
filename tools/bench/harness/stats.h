// Percentiles of one run's latencies, and sizes in words.
//
// Thread safety: pure functions and plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lodestone::bench {

// The nearest-rank percentile: the smallest value that at least `percent` of all are not greater than. Reorders
// `values`. REQUIRES: not empty, 0 < percent <= 100.
double Percentile(std::vector<float>* values, double percent);

// "64B", "4KiB", "1MiB": exact multiples only; otherwise bytes.
std::string SizeText(uint64_t bytes);

}  // namespace lodestone::bench
