#include "tools/bench/harness/stats.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lodestone::bench {

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

}  // namespace lodestone::bench
