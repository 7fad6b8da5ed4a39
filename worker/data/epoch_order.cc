#include "common/base/random.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {
namespace {

constexpr int kRounds = 6;

}  // namespace

EpochOrder::EpochOrder(uint64_t size, uint64_t seed, uint64_t epoch, bool shuffle)
    : size_(size), seed_(StreamSeed(StreamSeed(seed, StableHash("epoch order")), epoch)), shuffle_(shuffle) {
  half_bits_ = 1;
  while (half_bits_ < 32 && (uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
}

uint64_t EpochOrder::At(uint64_t position) const {
  if (!shuffle_) return position;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t at = position;
  // A permutation of fewer than 4 * size numbers; those outside are walked on from, until one is inside again.
  do {
    uint64_t left = at >> half_bits_;
    uint64_t right = at & mask;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (RandomBits(seed_ + round, right) & mask);
      left = right;
      right = mixed;
    }
    at = left << half_bits_ | right;
  } while (at >= size_);
  return at;
}

}  // namespace lodestone::worker
