#include "common/config/device_name.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/config/yaml_scalar.h"

namespace lodestone {

absl::StatusOr<DeviceName> ParseDeviceName(std::string_view text) {
  using Kind = DeviceName::Kind;
  if (text == "auto") return DeviceName{Kind::kAuto, std::nullopt};
  if (text == "cpu") return DeviceName{Kind::kCpu, std::nullopt};
  if (text == "cuda") return DeviceName{Kind::kCuda, std::nullopt};
  constexpr std::string_view kNumbered = "cuda:";
  int number = -1;
  if (text.starts_with(kNumbered) && absl::SimpleAtoi(std::string(text.substr(kNumbered.size())), &number) &&
      number >= 0) {
    return DeviceName{Kind::kCuda, number};
  }
  return absl::InvalidArgumentError(
      absl::StrCat(Quote(text), " is none of auto, cpu, cuda and cuda:N, where N counts from 0"));
}

}  // namespace lodestone
