// A push and a pull of what it leads to, in one exchange with each server where possible.
//
// Thread-safe. Callbacks run on a connection's thread or the timer's.
//
// Pusher and Puller must outlive this, and their channels must be cancelled before it is destroyed.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "worker/client/types.h"

namespace lodestone::worker {

class Puller;
class Pusher;

class PushPull {
 public:
  PushPull(uint32_t shards, Pusher* pusher, Puller* puller) : shards_(shards), pusher_(pusher), puller_(puller) {}

  // As Client::PushPull.
  absl::Status Run(const StepOrigin& step, std::span<const DenseGradient> dense, std::span<const RowGradients> rows,
                   const ReadVersions& read_versions, std::vector<DensePull> dense_pulls,
                   std::vector<RowPull> row_pulls, std::function<void(PushResult, ShardVersions)> done);

 private:
  const uint32_t shards_;
  Pusher* const pusher_;
  Puller* const puller_;
};

}  // namespace lodestone::worker
