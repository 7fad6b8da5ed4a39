#include "worker/capi/distinct_keys.h"

#include <bit>
#include <cstddef>

namespace lodestone::worker {

void FindDistinct(std::span<const Key> keys, std::vector<Key>* distinct, std::vector<uint32_t>* row) {
  // Open addressing with linear probing, at most half full; 0 marks a free slot.
  const size_t slots = std::bit_ceil(2 * keys.size() + 2);
  const int shift = 64 - std::countr_zero(slots);
  std::vector<uint32_t> places(slots, 0);  // The place in `distinct`, plus one.
  distinct->clear();
  distinct->reserve(keys.size());
  row->resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;  // Fibonacci hashing (Knuth, volume 3, 6.4).
    size_t at = (keys[i] ^ (keys[i] >> 32)) * kGolden >> shift;
    while (places[at] != 0 && (*distinct)[places[at] - 1] != keys[i]) at = (at + 1) & (slots - 1);
    if (places[at] == 0) {
      distinct->push_back(keys[i]);
      places[at] = static_cast<uint32_t>(distinct->size());
    }
    (*row)[i] = places[at] - 1;
  }
}

}  // namespace lodestone::worker
