#include "worker/client/push_pull.h"

#include <memory>
#include <utility>

#include "worker/client/pull_values.h"
#include "worker/client/puller.h"
#include "worker/client/pusher.h"

namespace lodestone::worker {

absl::Status PushPull::Run(const StepOrigin& step, std::span<const DenseGradient> dense,
                           std::span<const RowGradients> rows, const ReadVersions& read_versions,
                           std::vector<DensePull> dense_pulls, std::vector<RowPull> row_pulls,
                           std::function<void(PushResult, ShardVersions)> done) {
  const auto pull = std::make_shared<PullValues>(std::move(dense_pulls), std::move(row_pulls), shards_);
  const auto pushed = [this, pull, done = std::move(done)](PushResult result) {
    if (!result.status.ok() || pull->complete()) return done(std::move(result), pull->versions());
    // Some of the pull could not go with the push.
    puller_->Pull(pull->dense(), pull->rows(),
                  [done, result = std::move(result)](absl::Status status, ShardVersions versions) mutable {
                    result.status = std::move(status);
                    done(std::move(result), std::move(versions));
                  });
  };
  return pusher_->Push(step, dense, rows, read_versions, pushed, pull);
}

}  // namespace lodestone::worker
