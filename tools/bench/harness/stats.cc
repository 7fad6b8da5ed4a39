#include "tools/bench/harness/stats.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace lodestone::bench {

Spread SpreadOf(std::vector<double> values) {
  LODESTONE_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t upper = values.size() / 2;
  const size_t lower = (values.size() - 1) / 2;
  return {(values[lower] + values[upper]) / 2, values.front(), values.back()};
}

double Percentile(std::vector<float>* values, double percent) {
  LODESTONE_CHECK(!values->empty() && percent > 0 && percent <= 100);
  const auto rank = static_cast<size_t>(std::ceil(percent / 100 * static_cast<double>(values->size()) - 1e-9));
  const size_t index = std::clamp<size_t>(rank, 1, values->size()) - 1;
  std::nth_element(values->begin(), values->begin() + static_cast<ptrdiff_t>(index), values->end());
  return (*values)[index];
}

std::string SizeText(uint64_t bytes) {
  const char* unit = "B";
  for (const char* larger : {"KiB", "MiB", "GiB"}) {
    if (bytes == 0 || bytes % 1024 != 0) break;
    bytes /= 1024;
    unit = larger;
  }
  return absl::StrCat(bytes, unit);
}

std::string NumberText(double value) {
  if (value == 0 || !std::isfinite(value)) return absl::StrFormat("%g", value);
  const int whole_digits = static_cast<int>(std::floor(std::log10(std::abs(value)))) + 1;
  return absl::StrFormat("%.*f", std::clamp(3 - whole_digits, 0, 9), value);
}

}  // namespace lodestone::bench
