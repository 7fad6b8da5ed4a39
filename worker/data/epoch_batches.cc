#include "worker/data/epoch_batches.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace lodestone::worker {

EpochBatches::EpochBatches(uint64_t size, double epochs, uint64_t batch_size, uint64_t seed, bool shuffle)
    : size_(size),
      batch_size_(batch_size),
      seed_(seed),
      shuffle_(shuffle),
      total_samples_(static_cast<uint64_t>(std::llround(epochs * static_cast<double>(size)))) {
  LODESTONE_CHECK(batch_size > 0 && epochs >= 0);
}

uint64_t EpochBatches::batches() const {
  if (size_ == 0) return 0;
  return total_samples_ / size_ * epoch_batches() + BatchesOf(total_samples_ % size_);
}

void EpochBatches::Read(uint64_t number, std::vector<uint64_t>* indices) {
  LODESTONE_CHECK(number < batches());
  indices->clear();
  const uint64_t epoch = number / epoch_batches();
  if (!order_.has_value() || epoch != epoch_) order_.emplace(size_, seed_, epoch, shuffle_);
  epoch_ = epoch;
  const uint64_t samples = std::min(size_, total_samples_ - epoch * size_);
  const uint64_t batches = BatchesOf(samples), batch = number - epoch * epoch_batches();
  const auto begin_of = [&](uint64_t of) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(samples) * of / batches);
  };
  for (uint64_t i = begin_of(batch); i < begin_of(batch + 1); ++i) indices->push_back(order_->At(i));
}

bool EpochBatches::Next(std::vector<uint64_t>* indices) {
  indices->clear();
  if (next_ == batches()) return false;
  Read(next_++, indices);
  return true;
}

}  // namespace lodestone::worker
