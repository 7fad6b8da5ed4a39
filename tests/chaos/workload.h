// What the clients of a chaos run push, and where: functions of a seed and of each push's number, so that a test that
// knows which pushes were acknowledged knows what the servers must hold.
//
// Everything pushed is a small integer. Three of the tables add what is pushed, so their sums are exact in any order;
// the fourth is Adagrad's, where every gradient of a row is 1: its values and state depend on their number alone.
//
// Clients have slots. A slot's pushes add to cells of its own, whichever client has the slot at the time: in every
// dense block its steady cells, one of which counts pushes while the others are given weights in turns, and its last
// cells, one for each of the last pushes before a client dies. Nobody knows which of those were applied, so each leaves
// a receipt of its own: a last cell, and a row under a key of its own, on every shard.
//
// Beside the sums each steady push has a digit of its own, on one of its shards: it adds 4^d to one float of a row of
// kDigits, where d is its place in the float. A digit of 0 says that the push is not there, 1 once, 2 or 3 twice and
// three times. A float holds 24 bits exactly, so 12 digits: their sum is exact in any order, unless one push is there
// four times, and then it is not what it must be.
//
// Thread safety: immutable.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "proto/table.pb.h"

namespace lodestone::chaos {

inline constexpr uint32_t kSteadyCells = 16;
inline constexpr uint32_t kLastPushesMax = 16;  // Of one client before it dies.
inline constexpr uint32_t kDigitsPerFloat = 12;
inline constexpr uint32_t kDigitBits = 2;

// Which table something lies in.
enum class TableName { kDense, kLarge, kRows, kAdagrad, kDigits };
const char* NameOf(TableName table);

// The first key from `begin` that lies on `shard`: fewer than 2^20 away.
Key KeyOn(Key begin, ShardId shard, uint32_t shards);

// A number that a push adds to an element of a dense table's block.
struct CellAdd {
  TableName table = TableName::kDense;
  ShardId shard = 0;
  uint64_t element = 0;  // Of the table.
  int32_t value = 0;
  bool counts = false;  // The value is 1 for each push.
};

// The same of a row.
struct RowAdd {
  TableName table = TableName::kRows;
  ShardId shard = 0;
  Key key = 0;
  uint32_t column = 0;
  int32_t value = 0;
  bool counts = false;
};

// One push.
struct Push {
  uint32_t slot = 0;
  uint64_t number = 0;  // Of the slot's, over all its clients.
  bool last = false;    // Its cells and rows are receipts.
  bool dense = false;   // It has the whole table kDense,
  bool large = false;   // and kLarge.
  std::vector<CellAdd> cells;
  std::vector<RowAdd> rows;     // By table and key.
  std::vector<ShardId> shards;  // That it updates, ascending.
};

class Workload {
 public:
  struct Options {
    uint64_t seed = 1;
    uint32_t slots = 4;
    uint32_t shards = 16;
    std::vector<uint32_t> owners;  // The server of each shard.
    bool digits_only = false;      // A steady push is its digit, and nothing else.
  };
  explicit Workload(Options options);

  uint32_t slots() const { return options_.slots; }
  uint32_t shards() const { return options_.shards; }
  uint32_t OwnerOf(ShardId shard) const { return options_.owners[shard]; }

  // By TableName.
  std::vector<v1::TableSpec> Tables() const;
  // kDense's or kLarge's.
  uint64_t ElementsOf(TableName table) const;
  // kRows', kAdagrad's or kDigits' floats per row.
  uint32_t DimOf(TableName table) const;
  // The rows of kRows that all slots push to.
  std::vector<Key> SharedKeys() const;

  Push SteadyPush(uint32_t slot, uint64_t number) const;
  // Where the digit of a slot's steady push lies; its RowAdd::value is the digit's weight.
  RowAdd DigitOf(uint32_t slot, uint64_t number) const;
  // The `index`-th of the last pushes. REQUIRES: index < kLastPushesMax.
  Push LastPush(uint32_t slot, uint64_t number, uint32_t index) const;

  // How many pushes make a row of kAdagrad `value`, the nearest; `off` by more than what rounding explains: none do.
  struct AdagradCount {
    uint64_t pushes = 0;
    bool off = false;
  };
  static AdagradCount AdagradPushes(double value);

 private:
  // Uniform below `bound`: the `n`-th number of a push.
  uint64_t Draw(const Push& push, uint64_t n, uint64_t bound) const;
  uint32_t BlockElements(TableName table) const;
  uint64_t FirstElement(TableName table, ShardId shard) const;
  void AddSteadyCells(TableName table, Push* push) const;
  void AddSteadyRow(ShardId shard, Push* push) const;
  void AddAdagradRow(ShardId shard, Push* push) const;
  static void Finish(Push* push);

  const Options options_;
  std::vector<std::vector<Key>> shared_keys_;  // By shard.
  std::vector<BlockIndex> blocks_[2];          // kDense's and kLarge's only block of each shard.
  std::vector<std::vector<ShardId>> shards_by_server_;
};

}  // namespace lodestone::chaos
