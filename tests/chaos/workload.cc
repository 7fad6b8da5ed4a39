#include "tests/chaos/workload.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/random.h"

namespace lodestone::chaos {
namespace {

constexpr uint32_t kCellsPerSlot = kSteadyCells + kLastPushesMax;
constexpr uint32_t kLargeBlockElements = 16 << 10;  // 64 KiB: some pushes are far longer than the others.
constexpr uint64_t kLargeEvery = 64;                // One of so many has the large table.
constexpr size_t kSharedKeysPerShard = 4;
constexpr int32_t kWeights = 7;               // From 1.
constexpr uint64_t kAdagradPushesMax = 1024;  // To one row: its steps stay well above the rounding of its value.

// Keys above these are the slots' own.
constexpr Key kLastKeys = Key{1} << 62;
constexpr Key kAdagradKeys = Key{1} << 61;
constexpr Key kDigitKeys = Key{1} << 60;
// Keys that differ in the lowest bits only: enough for one of them to lie on any wanted shard.
constexpr int kSearchBits = 20;
constexpr uint32_t kDigitFloats = 16;  // Of a row of kDigits.

}  // namespace

Key KeyOn(Key begin, ShardId shard, uint32_t shards) {
  Key key = begin;
  while (ShardOfKey(key, shards) != shard) ++key;
  LODESTONE_CHECK(key - begin < (Key{1} << kSearchBits));
  return key;
}

const char* NameOf(TableName table) {
  switch (table) {
    case TableName::kDense:
      return "dense";
    case TableName::kLarge:
      return "large";
    case TableName::kRows:
      return "rows";
    case TableName::kAdagrad:
      return "adagrad";
    case TableName::kDigits:
      return "digits";
  }
  return "";
}

Workload::Workload(Options options) : options_(std::move(options)) {
  LODESTONE_CHECK(options_.owners.size() == options_.shards);
  shards_by_server_.resize(*std::max_element(options_.owners.begin(), options_.owners.end()) + 1);
  shared_keys_.resize(options_.shards);
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    shards_by_server_[OwnerOf(shard)].push_back(shard);
    Key key = 0;
    while (shared_keys_[shard].size() < kSharedKeysPerShard) {
      key = KeyOn(key, shard, options_.shards);
      shared_keys_[shard].push_back(key++);
    }
  }
  for (const TableName table : {TableName::kDense, TableName::kLarge}) {
    std::vector<BlockIndex>& blocks = blocks_[static_cast<int>(table)];
    blocks.resize(options_.shards);
    for (BlockIndex block = 0; block < options_.shards; ++block) {
      blocks[ShardOfBlock(TableIdOf(NameOf(table)), block, options_.shards)] = block;
    }
  }
}

std::vector<v1::TableSpec> Workload::Tables() const {
  std::vector<v1::TableSpec> specs;
  for (const TableName table :
       {TableName::kDense, TableName::kLarge, TableName::kRows, TableName::kAdagrad, TableName::kDigits}) {
    v1::TableSpec& spec = specs.emplace_back();
    spec.set_name(NameOf(table));
    if (table == TableName::kDense || table == TableName::kLarge) {
      spec.mutable_dense()->add_dims(ElementsOf(table));
      spec.mutable_dense()->set_block_elements(BlockElements(table));
    } else {
      spec.mutable_embedding()->set_dim(DimOf(table));
    }
    spec.mutable_initializer()->mutable_zeros();
    spec.mutable_optimizer()->set_learning_rate(-1);
    if (table == TableName::kAdagrad) {
      spec.mutable_optimizer()->mutable_adagrad();
    } else {
      spec.mutable_optimizer()->mutable_sgd();
    }
  }
  return specs;
}

uint32_t Workload::BlockElements(TableName table) const {
  return table == TableName::kLarge ? std::max(kLargeBlockElements, kCellsPerSlot * slots()) : kCellsPerSlot * slots();
}

uint64_t Workload::ElementsOf(TableName table) const { return uint64_t{BlockElements(table)} * shards(); }

uint32_t Workload::DimOf(TableName table) const {
  if (table == TableName::kDigits) return kDigitFloats;
  return table == TableName::kRows ? 2 * slots() : 1;
}

std::vector<Key> Workload::SharedKeys() const {
  std::vector<Key> keys;
  for (const auto& of_shard : shared_keys_) keys.insert(keys.end(), of_shard.begin(), of_shard.end());
  return keys;
}

uint64_t Workload::Draw(const Push& push, uint64_t n, uint64_t bound) const {
  return RandomBits(StreamSeed(StreamSeed(options_.seed, push.slot), push.number), n) % bound;
}

uint64_t Workload::FirstElement(TableName table, ShardId shard) const {
  return uint64_t{blocks_[static_cast<int>(table)][shard]} * BlockElements(table);
}

void Workload::AddSteadyCells(TableName table, Push* push) const {
  for (ShardId shard = 0; shard < shards(); ++shard) {
    const uint64_t count = FirstElement(table, shard) + uint64_t{push->slot} * kCellsPerSlot;
    push->cells.push_back({table, shard, count, 1, true});
    const uint64_t weighted = count + 1 + push->number % (kSteadyCells - 1);
    push->cells.push_back({table, shard, weighted, 1 + static_cast<int32_t>(Draw(*push, 100, kWeights)), false});
  }
}

void Workload::AddSteadyRow(ShardId shard, Push* push) const {
  const Key key = shared_keys_[shard][Draw(*push, 200 + shard, kSharedKeysPerShard)];
  const auto weight = 1 + static_cast<int32_t>(Draw(*push, 300'000 + shard, kWeights));
  push->rows.push_back({TableName::kRows, shard, key, push->slot, 1, true});
  push->rows.push_back({TableName::kRows, shard, key, slots() + push->slot, weight, false});
}

void Workload::AddAdagradRow(ShardId shard, Push* push) const {
  const Key turn = (push->number / kAdagradPushesMax * slots() + push->slot) * shards() + shard;
  const Key key = KeyOn(kAdagradKeys + (turn << kSearchBits), shard, shards());
  push->rows.push_back({TableName::kAdagrad, shard, key, 0, 1, true});
}

// Neighbours lie on different shards; those of one row are `shards` numbers apart.
RowAdd Workload::DigitOf(uint32_t slot, uint64_t number) const {
  const uint64_t per_group = uint64_t{shards()} * kDigitFloats * kDigitsPerFloat;
  const auto shard = static_cast<ShardId>(number % shards());
  const auto digit = static_cast<uint32_t>(number % per_group / shards());
  const Key row = (number / per_group * slots() + slot) * shards() + shard;
  RowAdd add;
  add.table = TableName::kDigits;
  add.shard = shard;
  add.key = KeyOn(kDigitKeys + (row << kSearchBits), shard, shards());
  add.column = digit % kDigitFloats;
  add.value = int32_t{1} << (kDigitBits * (digit / kDigitFloats));
  return add;
}

Push Workload::SteadyPush(uint32_t slot, uint64_t number) const {
  Push push;
  push.slot = slot;
  push.number = number;
  push.rows.push_back(DigitOf(slot, number));
  if (options_.digits_only) {
    push.shards.push_back(push.rows[0].shard);
    return push;
  }
  const ShardId always = push.rows[0].shard;
  if (Draw(push, 0, 2) == 0) {
    push.dense = true;
    AddSteadyCells(TableName::kDense, &push);
    push.large = Draw(push, 1, kLargeEvery) == 0;
    if (push.large) AddSteadyCells(TableName::kLarge, &push);
    for (ShardId shard = 0; shard < shards(); ++shard) AddSteadyRow(shard, &push);
  } else {
    // Rows of some shards of one server.
    const std::vector<ShardId>& of_server = shards_by_server_[OwnerOf(always)];
    for (size_t i = 0; i < of_server.size(); ++i) {
      if (of_server[i] != always && Draw(push, 1'000'000 + i, 2) == 0) continue;
      AddSteadyRow(of_server[i], &push);
      AddAdagradRow(of_server[i], &push);
    }
  }
  Finish(&push);
  return push;
}

Push Workload::LastPush(uint32_t slot, uint64_t number, uint32_t index) const {
  LODESTONE_CHECK(index < kLastPushesMax);
  Push push;
  push.slot = slot;
  push.number = number;
  push.last = true;
  push.dense = true;
  push.large = index % 8 == 7;
  for (ShardId shard = 0; shard < shards(); ++shard) {
    for (const TableName table : {TableName::kDense, TableName::kLarge}) {
      if (table == TableName::kLarge && !push.large) continue;
      const uint64_t cell = FirstElement(table, shard) + uint64_t{slot} * kCellsPerSlot + kSteadyCells + index;
      push.cells.push_back({table, shard, cell, 1, true});
    }
    const Key turn = (number * slots() + slot) * shards() + shard;
    push.rows.push_back(
        {TableName::kRows, shard, KeyOn(kLastKeys + (turn << kSearchBits), shard, shards()), slot, 1, true});
  }
  Finish(&push);
  return push;
}

void Workload::Finish(Push* push) {
  std::stable_sort(push->rows.begin(), push->rows.end(), [](const RowAdd& a, const RowAdd& b) {
    return std::pair(a.table, a.key) < std::pair(b.table, b.key);
  });
  for (const CellAdd& cell : push->cells) push->shards.push_back(cell.shard);
  for (const RowAdd& row : push->rows) push->shards.push_back(row.shard);
  std::sort(push->shards.begin(), push->shards.end());
  push->shards.erase(std::unique(push->shards.begin(), push->shards.end()), push->shards.end());
}

Workload::AdagradCount Workload::AdagradPushes(double value) {
  // By number of pushes; twice as many as there are, to tell how many too many there were.
  static const std::vector<double>& values = *[] {
    auto* sums = new std::vector<double>{0};
    for (uint64_t push = 1; push <= 2 * kAdagradPushesMax; ++push) {
      sums->push_back(sums->back() + 1 / (std::sqrt(static_cast<double>(push)) + 1e-7));
    }
    return sums;
  }();
  AdagradCount count;
  const auto above = std::lower_bound(values.begin(), values.end(), value);
  count.pushes = std::min<uint64_t>(above - values.begin(), values.size() - 1);
  if (count.pushes > 0 && value - values[count.pushes - 1] < values[count.pushes] - value) --count.pushes;
  // Each step rounds the root, the quotient, the sum below it and the value, none by more than the value's half ulp.
  const double expected = values[count.pushes];
  const double tolerance =
      2 * static_cast<double>(count.pushes) * expected * static_cast<double>(std::numeric_limits<float>::epsilon());
  count.off = !(std::abs(value - expected) <= tolerance);
  return count;
}

}  // namespace lodestone::chaos
