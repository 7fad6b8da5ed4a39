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

bool EpochBatches::Next(std::vector<uint64_t>* indices) {
  indices->clear();
  if (done_ >= total_samples_) return false;
  const uint64_t epoch = done_ / size_;
  if (batch_ == 0) order_.emplace(size_, seed_, epoch, shuffle_);
  const uint64_t samples = std::min(size_, total_samples_ - epoch * size_);
  const uint64_t batches = (samples + batch_size_ - 1) / batch_size_;
  const auto begin_of = [&](uint64_t batch) {
    return static_cast<uint64_t>(static_cast<unsigned __int128>(samples) * batch / batches);
  };
  for (uint64_t i = begin_of(batch_); i < begin_of(batch_ + 1); ++i) indices->push_back(order_->At(i));
  done_ += indices->size();
  if (++batch_ == batches) batch_ = 0;
  return true;
}

}  // namespace lodestone::worker
