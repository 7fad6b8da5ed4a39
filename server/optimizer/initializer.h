// The initial values of parameters. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "proto/table.pb.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if a parameter of the distribution makes no sense.
absl::Status CheckInitializer(const v1::Initializer& config);

// dst[i] = initial value number first + i; a function of (config, seed, stream, first + i, fan_in, fan_out) alone.
// `seed` is the table's: derived from the cluster's seed and the table's id. `stream` is the row's key for embeddings,
// else 0. fan_in and fan_out are those of the dense table [fan_in, fan_out]; only xavier and he look at them.
// With config.zero_columns z, values 0 … z - 1 are 0, and value z + i is what value i would be without it.
// Uniform values lie in [low, high) also after rounding to float (all are `low` if low == high).
void InitializeValues(const v1::Initializer& config, uint64_t seed, uint64_t stream, uint64_t first, size_t n,
                      uint64_t fan_in, uint64_t fan_out, float* dst);

}  // namespace lodestone::server
