#include "worker/rpc/call_payload.h"

#include <algorithm>

namespace lodestone::worker {

void TakeSlices(uint64_t bytes, const std::vector<grpc::Slice>& from, size_t* at, size_t* offset,
                std::vector<grpc::Slice>* to) {
  while (bytes > 0) {
    const grpc::Slice& slice = from[*at];
    const uint64_t taken = std::min<uint64_t>(bytes, slice.size() - *offset);
    if (taken > 0) to->push_back(taken == slice.size() ? slice : slice.sub(*offset, *offset + taken));
    *offset += taken;
    bytes -= taken;
    if (*offset < slice.size()) continue;
    ++*at;
    *offset = 0;
  }
}

std::vector<grpc::Slice> KeysInParts(const CallNumbers& numbers) {
  if (numbers.keys.size() == 0) return numbers.values;
  if (numbers.values.empty()) return {numbers.keys};
  std::vector<grpc::Slice> slices;
  slices.reserve(2 * numbers.parts.size());
  size_t keys_at = 0;
  size_t at = 0;
  size_t offset = 0;
  for (const CallNumbers::Part& part : numbers.parts) {
    if (part.key_bytes > 0) slices.push_back(numbers.keys.sub(keys_at, keys_at + part.key_bytes));
    keys_at += part.key_bytes;
    TakeSlices(part.value_bytes, numbers.values, &at, &offset, &slices);
  }
  return slices;
}

std::vector<grpc::Slice> KeysFirst(const CallNumbers& numbers) {
  std::vector<grpc::Slice> slices;
  slices.reserve(1 + numbers.values.size());
  slices.push_back(numbers.keys);
  slices.insert(slices.end(), numbers.values.begin(), numbers.values.end());
  return slices;
}

}  // namespace lodestone::worker
