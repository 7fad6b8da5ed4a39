// The values of one pull: what it asks for, and where the answers go.
//
// Thread-safe, once Route has returned: answers may come at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/wire/message.h"
#include "proto/parameter_server.pb.h"
#include "worker/client/request_router.h"
#include "worker/client/types.h"
#include "worker/rpc/call_payload.h"

namespace lodestone::worker {

class PullValues {
 public:
  // Tables, keys and dst must stay while this is used.
  PullValues(std::vector<DensePull> dense, std::vector<RowPull> rows, uint32_t shards)
      : dense_(std::move(dense)), rows_(std::move(rows)), versions_(shards, 0) {}

  const std::vector<DensePull>& dense() const { return dense_; }
  const std::vector<RowPull>& rows() const { return rows_; }

  // The messages that ask for all of it, valid as long as this is; errors as RequestRouter's. Call it once.
  absl::StatusOr<std::vector<ShardMessage>> Route(const RequestRouter& router);

  // The payload of `message`: its keys.
  CallPayload MakePayload(const ShardMessage& message) const;
  // The same in steps, to be appended to a push's. AddSizes appends the parts' sizes, sets the answer's, and returns
  // the bytes of keys.
  size_t AddSizes(const ShardMessage& message, CallPayload* payload) const;
  void CopyKeys(const ShardMessage& message, uint8_t* to) const;

  // Copies the answer to `message` to where it belongs. INTERNAL, and nothing is copied, if it does not match.
  absl::Status Take(const v1::PullResponse& response, const Payload& payload, const ShardMessage& message);

  // Whether the answers to all messages have been taken.
  bool complete() const;
  // The versions of what has been taken; where several messages read one shard, the oldest counts.
  ShardVersions versions() const;
  // The lowest steps of tables whose consistency is sync or tokens of what has been taken; 0 without such tables.
  uint64_t steps() const;

 private:
  // Constant once Route has returned.
  const std::vector<DensePull> dense_;
  const std::vector<RowPull> rows_;
  std::vector<std::vector<uint32_t>> orders_;  // What the messages' parts point into.
  size_t messages_ = 0;

  mutable Mutex mu_;
  ShardVersions versions_ ABSL_GUARDED_BY(mu_);
  std::optional<uint64_t> steps_ ABSL_GUARDED_BY(mu_);
  size_t taken_ ABSL_GUARDED_BY(mu_) = 0;  // Messages.
};

}  // namespace lodestone::worker
