// The pull path of a client: asks each server for the values that it holds, in messages of moderate size, and copies
// the answers to where they belong.
//
// Thread-safe. Callbacks run on a connection's thread or the timer's.
//
// The channels must outlive this, and must be cancelled before this is destroyed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "worker/client/server_set.h"
#include "worker/client/types.h"
#include "worker/rpc/server_channel.h"

namespace lodestone::worker {

class Puller {
 public:
  explicit Puller(const ServerSet& servers) : servers_(servers) {}

  // As Client::Pull, or with `read` as PullSteps.
  void Pull(std::vector<DensePull> dense, std::vector<RowPull> rows,
            std::function<void(absl::Status, ShardVersions)> done) {
    PullSteps({}, std::move(dense), std::move(rows),
              [done = std::move(done)](absl::Status status, ShardVersions versions, uint64_t) {
                done(std::move(status), std::move(versions));
              });
  }
  void PullSteps(const StepRead& read, std::vector<DensePull> dense, std::vector<RowPull> rows,
                 std::function<void(absl::Status, ShardVersions, uint64_t)> done);

 private:
  struct Sending;
  struct Operation;

  void SendNext(const std::shared_ptr<Operation>& operation);
  void Send(Sending* sending, const std::shared_ptr<Operation>& operation);
  void OnAnswer(const absl::StatusOr<Connection::Answer>& answer, ServerChannel::Request* request, Sending* sending,
                const std::shared_ptr<Operation>& operation);
  void OnTurnedBack(const absl::Status& status, ServerChannel::Request* request, Sending* sending,
                    const std::shared_ptr<Operation>& operation);
  void SendAgain(const ShardMap& map, Sending* sending, const std::shared_ptr<Operation>& operation);
  void End(const absl::Status& status, const std::shared_ptr<Operation>& operation);

  const ServerSet servers_;
};

}  // namespace lodestone::worker
