// The statistics that the benchmark reports: percentiles of one run's latencies, and medians with their range over
// runs.
//
// Thread safety: pure functions and plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lodestone::bench {

// What several runs of the same measurement gave.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};

// The middle value, or the mean of the two middle ones. REQUIRES: not empty.
Spread SpreadOf(std::vector<double> values);

// The nearest-rank percentile: the smallest value that at least `percent` of all are not greater than. Reorders
// `values`. REQUIRES: not empty, 0 < percent <= 100.
double Percentile(std::vector<float>* values, double percent);

// "64B", "4KiB", "1MiB": exact multiples only; otherwise bytes.
std::string SizeText(uint64_t bytes);

// Three significant digits, without exponent: "0.046", "4.05", "16.4", "135", "2870".
std::string NumberText(double value);

}  // namespace lodestone::bench
