#include "common/wire/checkpoint_parts.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/numbers_text.h"

namespace lodestone {
namespace {

constexpr size_t kRunsMax = 8;  // Of shards, in a message.

}  // namespace

absl::Status CheckHoldsAllShards(absl::string_view name, std::span<const v1::CheckpointResponse> parts) {
  uint32_t shards = 0;
  std::set<uint32_t> held;
  for (const v1::CheckpointResponse& part : parts) {
    if (part.shards_of_cluster() == 0) return absl::OkStatus();
    shards = std::max(shards, part.shards_of_cluster());
    held.insert(part.shard_ids().begin(), part.shard_ids().end());
  }
  std::vector<uint32_t> missing;
  for (uint32_t shard = 0; shard < shards; ++shard) {
    if (!held.contains(shard)) missing.push_back(shard);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("checkpoint `", name, "` is not complete: no ps had shard ",
                                         NumbersText(missing, kRunsMax),
                                         " when it wrote its part. Shards moved meanwhile, or nobody serves them"));
}

}  // namespace lodestone
