// Pushes, and reads what comes of it, in one exchange with each server where it can be.
//
// Thread-safe. Callbacks run on a connection's thread or the timer's.
//
// Pusher and Puller must outlive this, and their callers must be cancelled before it is destroyed.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "worker/client/client.h"
#include "worker/client/puller.h"
#include "worker/client/pusher.h"
#include "worker/client/request_router.h"

namespace lodestone::worker {

class PushPuller {
 public:
  PushPuller(const Servers& servers, Pusher* pusher, Puller* puller)
      : servers_(servers), pusher_(pusher), puller_(puller) {}

  // As Client::PushPull.
  absl::Status PushPull(Clock clock, const PushWork& work, std::vector<DensePull> dense, std::vector<RowPull> rows,
                        std::function<void(Client::PushResult, ShardVersions)> done);

 private:
  struct Operation;

  const Servers servers_;
  Pusher* const pusher_;
  Puller* const puller_;
};

// Which message of `pull` can go with which of `push`, by its index, so that what it reads holds all that is pushed to
// it. Empty if not all of them can go with one. `same_keys` tells whether a source of rows of the push and one of the
// pull have the same keys in the same order.
using SameKeys = std::function<bool(size_t push_source, size_t pull_source)>;
std::vector<const RoutedMessage*> PairMessages(const Routing& push, const Routing& pull, uint32_t shards,
                                               const SameKeys& same_keys);

}  // namespace lodestone::worker
