// The payload of one push or pull: keys and values apart, so that a list of keys that the ps remembers need not be sent
// with them.
//
// A plain value; copies share the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/wire/key_list.h"
#include "grpcpp/support/slice.h"

namespace lodestone::worker {

struct CallPayload {
  // The share of one part.
  struct PartSizes {
    uint64_t key_bytes = 0;
    uint64_t value_bytes = 0;
  };
  std::vector<PartSizes> parts;     // Beside the call's.
  grpc::Slice keys;                 // Of all rows parts, in order.
  std::vector<grpc::Slice> values;  // Of all parts, in order.
  KeyListName list;                 // The name of the keys; count 0: they are not worth remembering.
  bool forgotten = false;           // The ps has forgotten the list: the keys must be sent.
  uint64_t answer_bytes = 0;        // Of the answer's values; 0: none, or unknown.
};

// Gives `payload` keys of `bytes` bytes, written by `fill(uint8_t*)`, and names them.
template <typename Fill>
void SetKeys(size_t bytes, const Fill& fill, CallPayload* payload) {
  if (bytes == 0) return;
  payload->keys = grpc::Slice(bytes);
  // The slice is not shared yet.
  auto* const begin = const_cast<uint8_t*>(payload->keys.begin());
  fill(begin);
  const auto count = static_cast<uint32_t>(bytes / sizeof(Key));
  if (count >= kKeyListKeysMin) payload->list = NameKeys(begin, count);
}

// The slices of a payload in the order of the wire, without a copy: each part's keys before its values; or all keys,
// then all values.
std::vector<grpc::Slice> KeysInParts(const CallPayload& payload);
std::vector<grpc::Slice> KeysFirst(const CallPayload& payload);

// Takes the first `bytes` of what begins at byte `*offset` of slice `*at`, by reference, and moves both on.
void TakeSlices(uint64_t bytes, const std::vector<grpc::Slice>& from, size_t* at, size_t* offset,
                std::vector<grpc::Slice>* to);

}  // namespace lodestone::worker
