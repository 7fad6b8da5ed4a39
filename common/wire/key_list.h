// Lists of keys that a stream Exchange remembers (KeyList in parameter_server.proto): what one is called, and a memory
// of some of them, which both ends have.
//
// Thread safety: NameKeys is thread-safe; a KeyListMemory is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/check.h"
#include "common/base/types.h"
#include "proto/parameter_server.pb.h"

namespace lodestone {

// Shorter lists are not worth it: their name takes about as much.
inline constexpr size_t kKeyListKeysMin = 32;
// What a ps remembers of one stream's lists, and a client believes that it does, …
inline constexpr size_t kKeyListBytesPerStream = 16 << 20;
// … and what a ps remembers of all together.
inline constexpr size_t kKeyListBytesMax = 256 << 20;

// 128 bits and the list's length.
struct KeyListName {
  uint64_t high = 0;
  uint64_t low = 0;
  uint32_t count = 0;  // Keys; 0: no list.

  bool operator==(const KeyListName&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const KeyListName& name) {
    return H::combine(std::move(h), name.high, name.low, name.count);
  }
};

// The name of `count` unaligned keys: a hash under a secret that this process has drawn, so that no client can
// construct lists whose names collide.
KeyListName NameKeys(const uint8_t* keys, uint32_t count);

inline KeyListName NameOf(const v1::KeyList& list) { return {list.name_high(), list.name_low(), list.count()}; }
inline void SetName(const KeyListName& name, v1::KeyList* list) {
  list->set_name_high(name.high);
  list->set_name_low(name.low);
  list->set_count(name.count);
}

// Something for each of some lists. If they take more than `bytes_max`, the one that was used least recently goes.
template <typename Value>
class KeyListMemory {
 public:
  explicit KeyListMemory(size_t bytes_max) : bytes_max_(bytes_max) {}

  // What a list takes: its keys and what belongs to them.
  static size_t BytesOf(const KeyListName& name) { return name.count * sizeof(Key) + kEntryBytes; }

  // What there is for the list, which was used just now; null: nothing.
  Value* Find(const KeyListName& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return nullptr;
    recent_.splice(recent_.begin(), recent_, found->second);
    return &found->second->second;
  }
  // False, and nothing changes, if the list alone is too long.
  bool Add(const KeyListName& name, Value value) {
    if (BytesOf(name) > bytes_max_) return false;
    Erase(name);
    recent_.emplace_front(name, std::move(value));
    by_name_[name] = recent_.begin();
    bytes_ += BytesOf(name);
    while (bytes_ > bytes_max_) EraseOldest();
    return true;
  }
  void Erase(const KeyListName& name) {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) return;
    bytes_ -= BytesOf(name);
    recent_.erase(found->second);
    by_name_.erase(found);
  }
  // REQUIRES: !empty().
  void EraseOldest() {
    LODESTONE_CHECK(!empty());
    const KeyListName oldest = recent_.back().first;
    Erase(oldest);
  }

  bool empty() const { return recent_.empty(); }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kEntryBytes = 160;

  using Entries = std::list<std::pair<KeyListName, Value>>;

  const size_t bytes_max_;
  size_t bytes_ = 0;
  Entries recent_;  // The most recently used first.
  absl::flat_hash_map<KeyListName, typename Entries::iterator> by_name_;
};

}  // namespace lodestone
