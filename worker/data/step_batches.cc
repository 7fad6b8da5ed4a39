#include "worker/data/step_batches.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"

namespace lodestone::worker {

void StepBatches::Read(uint64_t number, std::vector<uint64_t>* indices) {
  LODESTONE_CHECK(number < batches());
  const uint64_t whole = batches_->batches() / step_batches_ * step_batches_;
  if (number < whole) return batches_->Read(number, indices);
  std::vector<uint64_t> rest(batches_->batches() - whole);
  std::iota(rest.begin(), rest.end(), whole);
  ReadPart(rest, static_cast<uint32_t>(number - whole), indices);
}

void StepBatches::ReadPart(const std::vector<uint64_t>& numbers, uint32_t part, std::vector<uint64_t>* indices) {
  LODESTONE_CHECK(part < step_batches_);
  if (cut_ != numbers) {
    cut_ = numbers;
    cut_samples_.clear();
    std::vector<uint64_t> batch;
    for (const uint64_t number : numbers) {
      batches_->Read(number, &batch);
      cut_samples_.insert(cut_samples_.end(), batch.begin(), batch.end());
    }
  }
  indices->clear();
  const uint64_t samples = cut_samples_.size();
  const uint64_t begin = samples * part / step_batches_, end = samples * (uint64_t{part} + 1) / step_batches_;
  for (uint64_t i = begin; i < std::max(begin + 1, end); ++i) indices->push_back(cut_samples_[i]);
}

}  // namespace lodestone::worker
