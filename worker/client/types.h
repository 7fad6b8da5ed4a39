// The types of gradients, pulls and broadcasts in the Client's interface.
//
// Plain values. Tables, keys and numbers are referenced: Client says for how long they must stay.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/byte_view.h"
#include "common/base/types.h"
#include "proto/parameter_server.pb.h"
#include "worker/client/table_handle.h"

namespace lodestone::worker {

// Gradients of a whole dense table: layout.elements floats.
struct DenseGradient {
  const TableHandle* table = nullptr;
  const float* values = nullptr;
  // The values are sent from where they lie: they must stay, unchanged, until the push's `done` runs. Otherwise they
  // are copied.
  bool borrowed = false;
};

// Gradients of some rows: keys are distinct; values is [keys.size(), dim].
struct RowGradients {
  const TableHandle* table = nullptr;
  std::span<const Key> keys;
  const float* values = nullptr;
};

// A dense table's values wanted in dst (layout.elements floats).
struct DensePull {
  const TableHandle* table = nullptr;
  float* dst = nullptr;
};

// Some rows wanted in dst ([keys.size(), dim]), in the order of the keys.
struct RowPull {
  const TableHandle* table = nullptr;
  std::span<const Key> keys;
  float* dst = nullptr;
};

class ServerSessions;

// A leased range as what pushes (LeaseRanges of proto/coordinator.proto).
struct RangeSession {
  Incarnation incarnation = 0;               // 0: none.
  std::shared_ptr<ServerSessions> sessions;  // Which servers know it.
};

// A training step as the origin of a push. Of a step of a range, the push is applied once whichever worker sends it.
struct StepOrigin {
  StepOrigin(Clock clock) : clock(clock) {}  // Of this worker alone. NOLINT: a conversion.
  StepOrigin(Clock clock, RangeSession range, Sequence sequence)
      : clock(clock), range(std::move(range)), sequence(sequence) {}
  // Of tables whose consistency is sync or tokens: what is pushed is a part of their steps. It must hold gradients of
  // all of them, of no rows if need be; every shard that holds something of one gets a part.
  StepOrigin(Clock clock, v1::Contribution contribution) : clock(clock), contribution(std::move(contribution)) {}

  Clock clock = 0;        // This worker's steps so far.
  RangeSession range;     // The range that the step is of,
  Sequence sequence = 0;  // and its place in it, from 1.
  std::optional<v1::Contribution> contribution;
};

// Which steps a pull wants of tables whose consistency is sync (v1::PullRequest.steps_min).
struct StepRead {
  uint64_t steps_min = 0;    // The values have at least so many; the pull waits for them.
  bool every_shard = false;  // Every shard that holds something of the tables is asked, also where no value is wanted.
};

// The versions of the shards when values were read: index by shard, 0 where nothing was read.
using ShardVersions = std::vector<Version>;

// The versions at which a push's values were read: dense tables often at others than rows. Both may be empty: not
// known.
struct ReadVersions {
  ShardVersions dense;
  ShardVersions rows;
  bool told = false;  // To the servers, of all tables; otherwise of those that divide their learning rate by the delay.
};

// Updates between the reading of values and the application of the gradient that was computed from them.
struct Delay {
  double own = 0;  // This worker's.
  double others = 0;

  double all() const { return own + others; }
};

// The delay of a push's gradients of one table: the mean over the table's shards that the push touched.
struct PushDelay {
  const TableHandle* table = nullptr;
  Delay delay;
};

// The outcome of a push over all shards. OUT_OF_RANGE: the guard of a table refused it, or the part of it that one
// server got.
struct PushResult {
  absl::Status status;
  // What it became: for each shard that it touched, ascending, the version that has all of it.
  std::vector<std::pair<ShardId, Version>> applied;
  std::vector<PushDelay> delays;  // Of the tables whose values were read at known versions.
  // A contribution that all shards had from another push; and one to a step that some shard had applied without it.
  bool duplicate = false;
  bool late = false;
};

// A dense block that a subscription received.
struct BlockUpdate {
  TableId table = 0;
  BlockIndex block = 0;
  ShardId shard = 0;
  Version version = 0;  // At which the block last changed.
  ByteView values;      // Unaligned little-endian floats, `count` of them, valid during the callback only.
  size_t count = 0;
};

// Rows of an embedding table that a subscription received: of one shard, as of one version.
struct RowsOfShard {
  TableId table = 0;
  ShardId shard = 0;
  // Unaligned and little-endian, valid during the callback only.
  ByteView evicted;  // Keys of rows that are gone, `evicted_count` of them. They precede the rows.
  ByteView keys;     // Keys of rows that are new or have changed, `count` of them,
  ByteView values;   // and their floats, [count, dim].
  size_t evicted_count = 0;
  size_t count = 0;
};

// One of a client's subscriptions; not 0.
using SubscriptionId = uint64_t;

// The callbacks of a subscription. Those of one shard are called in order, those of several may be concurrent. One that
// is null is not called.
struct SubscriptionListener {
  // What follows, up to the shard's next on_shard, replaces all that was held of its tables.
  std::function<void(ShardId)> on_anchor;
  std::function<void(const BlockUpdate&)> on_block;
  std::function<void(const RowsOfShard&)> on_rows;
  // A change is complete: the version that is held now.
  std::function<void(ShardId, Version)> on_shard;
};

}  // namespace lodestone::worker
