// What is common to the parts of pushes and pulls (Part in parameter_server.proto).
//
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/base/types.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/parameter_server.pb.h"

namespace lodestone {

// Number of shards that a part is of.
inline size_t ShardCount(const v1::Part& part) { return std::max(1, part.shards_size()); }

// Calls visit(shard, row_count) for each of them, in the order of the payload. A row count that is missing is 0.
template <typename Visit>
void ForEachShard(const v1::Part& part, const Visit& visit) {
  if (part.shards_size() == 0) return visit(ShardId{part.shard()}, uint32_t{part.row_count()});
  for (int i = 0; i < part.shards_size(); ++i) {
    visit(ShardId{part.shards(i)}, i < part.row_counts_size() ? uint32_t{part.row_counts(i)} : 0);
  }
}

// Whether any of the parts names rows of an embedding table by their keys.
inline bool HasRows(const google::protobuf::RepeatedPtrField<v1::Part>& parts) {
  return std::any_of(parts.begin(), parts.end(), [](const v1::Part& part) {
    return part.row_count() > 0 ||
           std::any_of(part.row_counts().begin(), part.row_counts().end(), [](uint32_t rows) { return rows > 0; });
  });
}

}  // namespace lodestone
