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

std::vector<grpc::Slice> KeysInParts(const CallPayload& payload) {
  if (payload.keys.size() == 0) return payload.values;
  if (payload.values.empty()) return {payload.keys};
  std::vector<grpc::Slice> slices;
  slices.reserve(2 * payload.parts.size());
  size_t keys_at = 0;
  size_t at = 0;
  size_t offset = 0;
  for (const CallPayload::PartSizes& part : payload.parts) {
    if (part.key_bytes > 0) slices.push_back(payload.keys.sub(keys_at, keys_at + part.key_bytes));
    keys_at += part.key_bytes;
    TakeSlices(part.value_bytes, payload.values, &at, &offset, &slices);
  }
  return slices;
}

std::vector<grpc::Slice> KeysFirst(const CallPayload& payload) {
  std::vector<grpc::Slice> slices;
  slices.reserve(1 + payload.values.size());
  slices.push_back(payload.keys);
  slices.insert(slices.end(), payload.values.begin(), payload.values.end());
  return slices;
}

}  // namespace lodestone::worker
