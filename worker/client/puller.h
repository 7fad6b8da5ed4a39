// Reads values: asks each server for what it holds, in messages of moderate size, and puts the answers where they
// belong.
//
// Thread-safe. Callbacks run on a connection's thread or the timer's.
//
// The callers must outlive this, and must be cancelled before this is destroyed.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/client/client.h"
#include "worker/client/pusher.h"

namespace lodestone::worker {

class Puller {
 public:
  explicit Puller(const Servers& servers) : servers_(servers) {}

  // As Client::Pull.
  void Pull(std::vector<DensePull> dense, std::vector<RowPull> rows,
            std::function<void(absl::Status, ShardVersions)> done);

 private:
  struct Sending;
  struct Operation;

  void SendNext(const std::shared_ptr<Operation>& operation);
  void Send(Sending* sending, const std::shared_ptr<Operation>& operation);
  void OnAnswer(const absl::StatusOr<Connection::Answer>& answer, Caller::Message* message, Sending* sending,
                const std::shared_ptr<Operation>& operation);
  void OnTurnedBack(const absl::Status& status, Caller::Message* message, Sending* sending,
                    const std::shared_ptr<Operation>& operation);
  void SendAgain(const ShardMap& map, Sending* sending, const std::shared_ptr<Operation>& operation);
  void End(const absl::Status& status, const std::shared_ptr<Operation>& operation);

  const Servers servers_;
};

}  // namespace lodestone::worker
