#include "worker/data/number.h"

#include <charconv>
#include <cstdlib>
#include <string>
#include <system_error>

namespace lodestone::worker {

const char* ParseLongNumberPrefix(const char* begin, const char* end, double* value) {
  const char* p = begin;
  if (p < end && *p == '+') {
    ++p;
    if (p < end && *p == '-') return nullptr;
  }
  const std::from_chars_result result = std::from_chars(p, end, *value);
  if (result.ec == std::errc::invalid_argument) return nullptr;
  // Only strtod tells too large from too small.
  if (result.ec == std::errc::result_out_of_range) *value = std::strtod(std::string(p, result.ptr).c_str(), nullptr);
  return result.ptr;
}

}  // namespace lodestone::worker
