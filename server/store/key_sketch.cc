#include "server/store/key_sketch.h"

#include <algorithm>

namespace lodestone::server {

void KeySketch::Add(TableId table, Key key) {
  ++total_;
  for (size_t i = 0; i < kCounters; ++i) {
    if (keys_[i] != key || tables_[i] != table || counts_[i] == 0) continue;
    ++counts_[i];
    return;
  }
  const size_t least = static_cast<size_t>(std::min_element(counts_.begin(), counts_.end()) - counts_.begin());
  keys_[least] = key;
  tables_[least] = table;
  errors_[least] = counts_[least];
  ++counts_[least];
}

std::vector<KeySketch::Frequent> KeySketch::AtLeast(uint64_t count_min) const {
  std::vector<Frequent> frequent;
  for (size_t i = 0; i < kCounters; ++i) {
    const uint64_t count = counts_[i] - errors_[i];
    if (counts_[i] > 0 && count >= count_min) frequent.push_back({tables_[i], keys_[i], count});
  }
  std::sort(frequent.begin(), frequent.end(), [](const Frequent& a, const Frequent& b) { return a.count > b.count; });
  return frequent;
}

}  // namespace lodestone::server
