// Parser of worker.device.
//
// Thread safety: a pure function.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lodestone {

// What computes a worker's steps, as worker.device names it.
struct DeviceName {
  enum class Kind { kAuto, kCpu, kCuda };
  Kind kind = Kind::kAuto;
  std::optional<int> number;  // Of a CUDA device; nullopt: any.
};

// Reads auto, cpu, cuda or cuda:N. INVALID_ARGUMENT, saying so, for any other.
absl::StatusOr<DeviceName> ParseDeviceName(std::string_view text);

}  // namespace lodestone
