// The ps and the sizes of the tables that tests of its calls begin with.
#pragma once

#include <cstdint>

#include "common/base/types.h"

namespace lodestone::server {

inline constexpr Incarnation kServerIncarnation = 4242;
inline constexpr uint64_t kElements = 1000;  // Of a dense table.
inline constexpr uint32_t kBlockElements = 100;
inline constexpr uint32_t kDim = 4;  // Of an embedding table.

}  // namespace lodestone::server
