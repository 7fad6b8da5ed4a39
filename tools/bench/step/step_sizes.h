// The sizes of the training steps that local_step, torch_step.py and a cluster are compared at.
#pragma once

#include <cstdint>

namespace lodestone::bench {

// Clicks: categorical fields with so many values each, whose frequencies follow Zipf's law, and numeric features.
inline constexpr uint32_t kFields = 26;
inline constexpr uint64_t kValuesPerField = 10000;
inline constexpr double kZipfExponent = 1.05;
inline constexpr uint32_t kNumeric = 13;
inline constexpr uint32_t kDim = 16;
inline constexpr uint32_t kBottomHidden = 64;
inline constexpr double kPositiveShare = 0.25;
// Images.
inline constexpr uint32_t kPixels = 784;
inline constexpr uint32_t kClasses = 10;

}  // namespace lodestone::bench
