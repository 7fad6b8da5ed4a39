#include "worker/training/step_outputs.h"

namespace lodestone::worker {
namespace {

constexpr size_t kOutputAlignmentFloats = 64;

}  // namespace

void StepOutputs::Lay(std::span<const size_t> gradient_floats, size_t samples) {
  size_t end = 0;
  const auto add = [&end](size_t floats) {
    const size_t offset = end;
    end += (floats + kOutputAlignmentFloats - 1) / kOutputAlignmentFloats * kOutputAlignmentFloats;
    return offset;
  };
  gradients_.clear();
  for (const size_t floats : gradient_floats) gradients_.push_back({add(floats), floats});
  loss_ = add(sizeof(double) / sizeof(float));
  predictions_ = add(samples);
  memory_.Resize(end);
}

}  // namespace lodestone::worker
