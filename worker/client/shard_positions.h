// The versions that a subscription holds of each shard, whichever ps they came from: kept from one stream to the next,
// and shared by the streams to all servers.
//
// A shard that changes its owner comes by another stream from then on, and for a moment perhaps by both: the newer term
// wins, and what an older owner still sends is dropped.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <deque>
#include <optional>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/parameter_server.pb.h"

namespace lodestone::worker {

// A state of a shard. Versions are comparable within one term only; a greater term is newer.
struct Position {
  uint64_t term = 0;
  Version version = 0;
  friend auto operator<=>(const Position&, const Position&) = default;
};

// The position of one shard. The reader of a piece of a change holds the mutex until the listener has got it.
class ShardPosition {
 public:
  Mutex mu;

  enum class Piece {
    kOutdated,  // What is held is of a newer term: it is not to be applied.
    kFirst,     // Of a change.
    kNext,
  };
  // What a piece from the stream of `reader` is. INTERNAL if it does not continue what is held: then that is forgotten,
  // and the shard needs an anchor.
  absl::StatusOr<Piece> Admit(uint64_t reader, const v1::Delta::ShardDelta& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The piece was admitted, and the listener has got it.
  void Apply(const v1::Delta::ShardDelta& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Drops what is held.
  void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const std::optional<Position>& held() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) { return held_; }

 private:
  // A change whose pieces are coming, or were when their stream ended.
  struct Incoming {
    uint64_t reader = 0;
    Position to;
  };

  // The error of the first piece of a change that cannot be applied.
  absl::Status CheckStart(const v1::Delta::ShardDelta& delta, const Position& to) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  std::optional<Position> held_ ABSL_GUARDED_BY(mu);  // Complete; nullopt: nothing.
  std::optional<Incoming> incoming_ ABSL_GUARDED_BY(mu);
};

class ShardPositions {
 public:
  // `shards` is cluster.shards.
  explicit ShardPositions(uint32_t shards) : shards_(shards) {}

  uint32_t shards() const { return static_cast<uint32_t>(shards_.size()); }
  // REQUIRES: shard < shards().
  ShardPosition* Of(ShardId shard) { return &shards_[shard]; }
  // Names a stream.
  uint64_t NewReader() { return ++readers_; }
  // What is held, for a new stream to continue from.
  google::protobuf::RepeatedPtrField<v1::SubscribeRequest::Held> Held();

 private:
  std::deque<ShardPosition> shards_;  // Their number is constant.
  std::atomic<uint64_t> readers_{0};
};

}  // namespace lodestone::worker
