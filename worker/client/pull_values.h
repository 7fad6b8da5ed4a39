// What a pull wants, and where it goes.
//
// Thread-safe: answers may come at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/wire/message.h"
#include "common/wire/shard_map.h"
#include "proto/parameter_server.pb.h"
#include "worker/client/client.h"
#include "worker/client/request_router.h"
#include "worker/rpc/call_payload.h"

namespace lodestone::worker {

class PullValues {
 public:
  // Tables, keys and dst must stay while this is used.
  PullValues(std::vector<DensePull> dense, std::vector<RowPull> rows, uint32_t shards)
      : dense_(std::move(dense)), rows_(std::move(rows)), versions_(shards, 0) {}

  const std::vector<DensePull>& dense() const { return dense_; }
  const std::vector<RowPull>& rows() const { return rows_; }

  // The messages that ask for all of it; errors as Route.
  absl::StatusOr<Routing> RouteBy(const ShardMap& map, const MessageLimits& limits) const;

  // What `message` asks for: its parts, what each of them has of the keys, and those. Returns the bytes of the values
  // that the answer will have.
  uint64_t AddParts(const RoutedMessage& message, v1::PullRequest* request,
                    std::vector<CallNumbers::Part>* parts) const;
  // Returns where the next keys go.
  uint8_t* CopyKeys(const RoutedMessage& message, uint8_t* to) const;

  // Puts the answer to `message` where it belongs. INTERNAL, and nothing is put anywhere, if it is none.
  absl::Status Take(const v1::PullResponse& response, const Payload& payload, const RoutedMessage& message);

  // Of what has been taken; where several messages read one shard, the oldest counts.
  ShardVersions versions() const;

 private:
  const std::vector<DensePull> dense_;
  const std::vector<RowPull> rows_;

  mutable Mutex mu_;
  ShardVersions versions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::worker
