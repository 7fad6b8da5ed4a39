#include "worker/data/step_batches.h"

#include <algorithm>

#include "common/base/check.h"

namespace lodestone::worker {

void StepBatches::Read(uint64_t number, std::vector<uint64_t>* indices) {
  LODESTONE_CHECK(number < batches());
  const uint64_t whole = batches_->batches() / step_batches_ * step_batches_;
  if (number < whole) return batches_->Read(number, indices);
  if (rest_.empty()) ReadRest();
  indices->clear();
  const uint64_t samples = rest_.size(), batch = number - whole;
  const uint64_t begin = samples * batch / step_batches_, end = samples * (batch + 1) / step_batches_;
  for (uint64_t i = begin; i < std::max(begin + 1, end); ++i) indices->push_back(rest_[i]);
}

void StepBatches::ReadRest() {
  std::vector<uint64_t> batch;
  for (uint64_t b = batches_->batches() / step_batches_ * step_batches_; b < batches_->batches(); ++b) {
    batches_->Read(b, &batch);
    rest_.insert(rest_.end(), batch.begin(), batch.end());
  }
}

}  // namespace lodestone::worker
