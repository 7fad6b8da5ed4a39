// The pairing of a pull's messages with a push's: a pull that goes with a push in one call saves a round trip.
//
// Thread safety: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "worker/client/push_payload.h"
#include "worker/client/request_router.h"
#include "worker/client/types.h"

namespace lodestone::worker {

// Whether a source of rows of the push and one of the pull have the same keys in the same order.
using SameKeys = std::function<bool(size_t push_source, size_t pull_source)>;

// The index of the message of `pull` that can go with each of `push`, -1 for none, so that what it reads includes all
// that is pushed to it. Empty unless every message of `pull` goes with one.
std::vector<int> PairMessages(std::span<const ShardMessage> push, std::span<const ShardMessage> pull, uint32_t shards,
                              const SameKeys& same_keys);

// Routes `pull` and, if all of its messages can go with one of `push`, sets `riders`: one for each of those, some of
// them empty. `rows` are the push's. Errors as RequestRouter's.
absl::Status PairWithPush(const RequestRouter& router, std::span<const ShardMessage> push,
                          std::span<const RowGradients> rows, const std::shared_ptr<PullValues>& pull,
                          std::vector<PullRider>* riders);

}  // namespace lodestone::worker
