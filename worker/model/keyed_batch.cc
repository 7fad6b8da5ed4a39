#include "worker/model/keyed_batch.h"

#include <algorithm>
#include <bit>

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/limits.h"

namespace lodestone::worker {
namespace {

constexpr size_t kAhead = 32;

}  // namespace

void KeyIndexer::Index(KeyedBatch* batch) {
  const std::vector<Key>& features = batch->batch.keys;
  LODESTONE_CHECK(features.size() <= limits::kRowsPerBatchMax);
  batch->keys.clear();
  batch->row.resize(features.size());
  const size_t capacity = std::bit_ceil(std::max<size_t>(2 * features.size(), 64));
  if (slots_.size() < capacity || ++round_ == 0) {
    slots_.assign(std::max(capacity, slots_.size()), Slot{});
    round_ = 1;
  }
  // The slots of some features are asked for before the first of them is needed: the memory that they lie in has been
  // pushed out of the caches by what came since the last batch.
  for (size_t begin = 0; begin < features.size(); begin += kAhead) {
    const size_t count = std::min(kAhead, features.size() - begin);
    size_t at[kAhead];
    for (size_t i = 0; i < count; ++i) {
      at[i] = Mix64(features[begin + i]) & (slots_.size() - 1);
      __builtin_prefetch(&slots_[at[i]], /*rw=*/1);
    }
    for (size_t i = 0; i < count; ++i) batch->row[begin + i] = RowOf(features[begin + i], at[i], &batch->keys);
  }
}

uint32_t KeyIndexer::RowOf(Key key, size_t at, std::vector<Key>* keys) {
  while (slots_[at].round == round_ && slots_[at].key != key) at = (at + 1) & (slots_.size() - 1);
  Slot& slot = slots_[at];
  if (slot.round != round_) {
    slot = {key, static_cast<uint32_t>(keys->size()), round_};
    keys->push_back(key);
  }
  return slot.row;
}

}  // namespace lodestone::worker
