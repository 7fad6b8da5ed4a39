// What a backend keeps of a linear layer's factors from its forward pass for the backward one: copies in the form in
// which products take them (bf16, rows on boundaries that tensor cores want), so that each is converted once in a step.
// A backend that multiplies factors as they are keeps nothing.
//
// Not thread-safe. The backend must outlive it.
#pragma once

#include <cstdint>

#include "kernels/scratch_array.h"

namespace lodestone::kernels {

struct LinearFactors {
  explicit LinearFactors(Backend* backend) : x(backend), w(backend) {}
  ScratchArray<uint8_t> x;
  ScratchArray<uint8_t> w;
};

}  // namespace lodestone::kernels
