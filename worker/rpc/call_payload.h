// The numbers of a push or a pull, as they wait to be sent: keys and values apart, so that a list of keys that the ps
// remembers need not go with them.
//
// A plain value; copies share the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/wire/key_list.h"
#include "grpcpp/support/slice.h"

namespace lodestone::worker {

struct CallNumbers {
  // What one part has of them.
  struct Part {
    uint64_t key_bytes = 0;
    uint64_t value_bytes = 0;
  };
  std::vector<Part> parts;          // Beside the call's.
  grpc::Slice keys;                 // Of all rows parts, in order.
  std::vector<grpc::Slice> values;  // Of all parts, in order.
  KeyListName list;                 // What the keys are called; count 0: they are not worth remembering.
  bool forgotten = false;           // A ps had forgotten the list: the keys are to be sent.
  uint64_t answer_bytes = 0;        // Of the values that the answer will have; 0: none, or it is not known.
};

// Keys of so many bytes for `numbers`, written by `fill(uint8_t*)`, and their name.
template <typename Fill>
void SetKeys(size_t bytes, const Fill& fill, CallNumbers* numbers) {
  if (bytes == 0) return;
  numbers->keys = grpc::Slice(bytes);
  // Nobody else has the slice yet.
  auto* const begin = const_cast<uint8_t*>(numbers->keys.begin());
  fill(begin);
  const auto count = static_cast<uint32_t>(bytes / sizeof(Key));
  if (count >= kKeyListKeysMin) numbers->list = NameKeys(begin, count);
}

// Payloads of these numbers, without a copy: each part's keys before its values; all keys, then all values.
std::vector<grpc::Slice> KeysInParts(const CallNumbers& numbers);
std::vector<grpc::Slice> KeysFirst(const CallNumbers& numbers);

// Takes the first `bytes` of what begins at byte `*offset` of slice `*at`, by reference, and moves both on.
void TakeSlices(uint64_t bytes, const std::vector<grpc::Slice>& from, size_t* at, size_t* offset,
                std::vector<grpc::Slice>* to);

}  // namespace lodestone::worker
