#include "worker/rpc/part_expansion.h"

#include <numeric>
#include <utility>

#include "common/base/types.h"
#include "common/wire/part.h"

namespace lodestone::worker {
namespace {

// What a part takes in a message at most, if it is of one shard and has rows.
constexpr size_t kPartBytesMax = 36;

size_t ExpansionBytesMax(const Parts& parts) {
  size_t bytes = 0;
  for (const v1::Part& part : parts) bytes += static_cast<size_t>(part.shards_size()) * kPartBytesMax;
  return bytes;
}

}  // namespace

Parts ExpandParts(const Parts& parts, std::span<const CallPayload::PartSizes> sizes,
                  std::vector<CallPayload::PartSizes>* expanded) {
  Parts result;
  for (int i = 0; i < parts.size(); ++i) {
    const v1::Part& part = parts[i];
    if (part.shards_size() == 0) {
      *result.Add() = part;
      expanded->push_back(sizes[i]);
      continue;
    }
    const uint64_t rows = std::accumulate(part.row_counts().begin(), part.row_counts().end(), uint64_t{0});
    const uint64_t row_bytes = rows == 0 ? 0 : sizes[i].value_bytes / rows;
    int place = 0;
    ForEachShard(part, [&](ShardId shard, uint32_t row_count) {
      v1::Part& one = *result.Add();
      if (place < part.read_versions_size()) one.add_read_versions(part.read_versions(place));
      ++place;
      one.set_shard(shard);
      one.set_table(part.table());
      one.set_row_count(row_count);
      one.set_more(part.more());
      expanded->push_back({row_count * sizeof(Key), row_count * row_bytes});
    });
  }
  return result;
}

void ExpandCall(v1::Call* call, std::vector<CallPayload::PartSizes>* sizes) {
  const std::vector<CallPayload::PartSizes> whole = std::exchange(*sizes, {});
  std::span<const CallPayload::PartSizes> rest = whole;
  const auto expand = [&](auto* request) {
    const size_t count = static_cast<size_t>(request->parts_size());
    Parts parts = ExpandParts(request->parts(), rest.first(count), sizes);
    rest = rest.subspan(count);
    request->mutable_parts()->Swap(&parts);
  };
  if (call->has_push()) expand(call->mutable_push());
  if (call->has_pull()) expand(call->mutable_pull());
  if (call->has_push_pull()) {
    expand(call->mutable_push_pull()->mutable_push());
    expand(call->mutable_push_pull()->mutable_pull());
  }
}

size_t ExpansionBytesMax(const v1::Call& call) {
  return ExpansionBytesMax(call.push().parts()) + ExpansionBytesMax(call.pull().parts()) +
         ExpansionBytesMax(call.push_pull().push().parts()) + ExpansionBytesMax(call.push_pull().pull().parts());
}

}  // namespace lodestone::worker
