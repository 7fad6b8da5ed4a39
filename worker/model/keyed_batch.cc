#include "worker/model/keyed_batch.h"

#include <algorithm>
#include <bit>

#include "common/check.h"
#include "common/hash.h"
#include "common/limits.h"

namespace lodestone {

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
  const size_t mask = slots_.size() - 1;
  for (size_t f = 0; f < features.size(); ++f) {
    size_t at = Mix64(features[f]) & mask;
    while (slots_[at].round == round_ && slots_[at].key != features[f]) at = (at + 1) & mask;
    Slot& slot = slots_[at];
    if (slot.round != round_) {
      slot = {features[f], static_cast<uint32_t>(batch->keys.size()), round_};
      batch->keys.push_back(features[f]);
    }
    batch->row[f] = slot.row;
  }
}

}  // namespace lodestone
