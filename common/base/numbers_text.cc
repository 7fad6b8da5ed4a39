#include "common/base/numbers_text.h"

#include "absl/strings/str_cat.h"

namespace lodestone {

std::string NumbersText(const std::vector<uint32_t>& numbers, size_t runs_max) {
  std::string text;
  size_t runs = 0;
  for (size_t i = 0; i < numbers.size();) {
    if (runs++ == runs_max) {
      absl::StrAppend(&text, " and ", numbers.size() - i, " more");
      break;
    }
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ", ", numbers[i]);
    if (last > i) absl::StrAppend(&text, last == i + 1 ? ", " : "-", numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace lodestone
