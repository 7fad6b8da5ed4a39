// An evenly spread sample of samples that come one after another, however many they turn out to be: each of them at
// first, and each 2^n-th once there are more than fit. Where memory is short it can be thinned further.
//
// Not thread-safe. Owns the samples.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "common/base/check.h"

namespace lodestone::worker {

// `Data` has Append, KeepEverySecond, size and bytes, as StoredDataset.
template <typename Data>
class EvenSample {
 public:
  // Keeps at most `max` (at least 1) in `data`, which is empty.
  EvenSample(std::unique_ptr<Data> data, uint64_t max) : data_(std::move(data)), max_(max) { LODESTONE_CHECK(max > 0); }

  // The next sample, as Data::Append takes it.
  template <typename... Sample>
  void Offer(const Sample&... sample) {
    if (offered_++ % stride_ != 0) return;
    data_->Append(sample...);
    if (data_->size() > max_) Thin();
  }

  // Keeps half of them, until they take `bytes_max` at most or one is left.
  void FitInto(uint64_t bytes_max) {
    while (data_->bytes() > bytes_max && data_->size() > 1) Thin();
  }

  uint64_t bytes() const { return data_->bytes(); }
  Data* data() { return data_.get(); }
  // Gives them away.
  std::unique_ptr<Data> Take() { return std::move(data_); }

 private:
  void Thin() {
    data_->KeepEverySecond();
    stride_ *= 2;
  }

  std::unique_ptr<Data> data_;
  const uint64_t max_;
  uint64_t offered_ = 0;
  uint64_t stride_ = 1;
};

}  // namespace lodestone::worker
