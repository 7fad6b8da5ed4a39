// Load through the real worker::Client, in a process of its own: what is measured is what a trainer gets.
//
// Thread safety: a load belongs to one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "proto/config.pb.h"
#include "proto/table.pb.h"
#include "tools/bench/harness/peer.h"

namespace lodestone::bench {

// Order::operation of these loads.
enum class ClientOperation : uint32_t {
  kPush,          // Dense: one table's gradient. Rows: the gradients of one set of keys.
  kPull,          // One table's values; one set's rows.
  kPushPull,      // The push and the values after it, in one.
  kPushThenPull,  // The same, one after the other.
  kPullThenPush,  // The values, then a push: a training step's traffic.
};
const char* NameOf(ClientOperation operation);

// Dense tables "dense/0", "dense/1", … of `bytes` each, which operations take turns on.
struct DenseWork {
  uint64_t bytes = 0;
  uint32_t tables = 1;
  uint32_t depth_max = 1;            // Of the orders to come.
  std::string name = "dense";        // In place of that.
  uint64_t memory_bytes = 64 << 20;  // That gradients are sent from, and values received into.
};
Peer::MakeLoad DenseLoad(const v1::Config& config, const DenseWork& work);

// An embedding table "rows" whose keys 0 … rows - 1 all exist; operations take turns on sets of `keys` random ones. Of
// each a key is replaced before every operation, unless the order says that keys repeat. Or several such tables,
// "rows/0", "rows/1", …: an operation's keys are all of one of them, which take turns, or of as many as the order says,
// which divides their number.
struct RowsWork {
  uint64_t rows = 0;
  uint32_t dim = 16;
  uint32_t keys = 4096;
  uint32_t depth_max = 1;
  uint32_t tables = 1;
  bool adagrad = true;      // Otherwise SGD.
  uint64_t first_draw = 0;  // Of its keys (DrawKeys).
  bool fills = true;        // Otherwise another client has made the rows.
};
// The next `count` different keys that exist, drawn at random, the same for the same *draw, which moves on.
std::vector<Key> DrawKeys(const RowsWork& work, size_t count, uint64_t* draw);
Peer::MakeLoad RowsLoad(const v1::Config& config, const RowsWork& work);

}  // namespace lodestone::bench
