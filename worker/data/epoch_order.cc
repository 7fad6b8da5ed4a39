#include <algorithm>
#include <bit>

#include "common/base/random.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {
namespace {

constexpr int kRounds = 6;
constexpr uint64_t kRunsStream = 0x72756e73;  // Of an epoch's seed; those of its windows are their numbers.
constexpr uint64_t kUnshuffledRun = 1024;     // Samples.

// A permutation of the numbers below `size`: a Feistel network over the least even number of bits that has them all,
// walked on from a number outside until one is inside again.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed)
      : size_(size),
        seed_(seed),
        half_bits_(size <= 1 ? 1 : (std::bit_width(size - 1) + 1) / 2),
        mask_((uint64_t{1} << half_bits_) - 1) {}

  uint64_t At(uint64_t at) const {
    do {
      uint64_t left = at >> half_bits_, right = at & mask_;
      for (int round = 0; round < kRounds; ++round) {
        const uint64_t mixed = left ^ Mix(round, right);
        left = right;
        right = mixed;
      }
      at = left << half_bits_ | right;
    } while (at >= size_);
    return at;
  }
  // The number that At gives this one for.
  uint64_t PlaceOf(uint64_t at) const {
    do {
      uint64_t left = at >> half_bits_, right = at & mask_;
      for (int round = kRounds - 1; round >= 0; --round) {
        const uint64_t mixed = right ^ Mix(round, left);
        right = left;
        left = mixed;
      }
      at = left << half_bits_ | right;
    } while (at >= size_);
    return at;
  }

 private:
  uint64_t Mix(int round, uint64_t half) const { return RandomBits(seed_ + round, half) & mask_; }

  const uint64_t size_;
  const uint64_t seed_;
  const int half_bits_;
  const uint64_t mask_;
};

}  // namespace

EpochOrder::EpochOrder(uint64_t size, uint64_t seed, uint64_t epoch, bool shuffle, uint64_t window)
    : size_(size), seed_(StreamSeed(StreamSeed(seed, StableHash("epoch order")), epoch)), shuffle_(shuffle) {
  if (shuffle && (window == 0 || window >= size)) return;
  run_samples_ = shuffle ? std::max<uint64_t>(1, window / kRunsPerWindow) : kUnshuffledRun;
  window_runs_ = shuffle ? window / run_samples_ : kRunsPerWindow;
  runs_ = (size + run_samples_ - 1) / run_samples_;
  if (runs_ == 0) return;
  const uint64_t short_place =
      shuffle ? Permutation(runs_, StreamSeed(seed_, kRunsStream)).PlaceOf(runs_ - 1) : runs_ - 1;
  short_by_ = runs_ * run_samples_ - size;
  short_end_ = (short_place + 1) * run_samples_ - short_by_;
}

EpochOrder::Run EpochOrder::RunAt(uint64_t place) const {
  const uint64_t run = shuffle_ ? Permutation(runs_, StreamSeed(seed_, kRunsStream)).At(place) : place;
  const uint64_t first = run * run_samples_;
  return {first, std::min(run_samples_, size_ - first)};
}

uint64_t EpochOrder::At(uint64_t position) const {
  if (!shuffle_) return position;
  if (runs_ == 0) return Permutation(size_, seed_).At(position);
  const uint64_t window = PlaceOf(position) / window_runs_, window_samples = window_runs_ * run_samples_;
  const uint64_t begin = Narrowed(window * window_samples);
  const uint64_t end = std::min(size_, Narrowed((window + 1) * window_samples));
  const uint64_t at = Widened(begin + Permutation(end - begin, StreamSeed(seed_, window)).At(position - begin));
  return RunAt(at / run_samples_).first + at % run_samples_;
}

}  // namespace lodestone::worker
