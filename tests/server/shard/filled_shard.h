// A shard with tables of every kind and random pushes to it, for tests of what is kept of a shard.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/wire/shard_map.h"
#include "gtest/gtest.h"
#include "server/shard/content_checksum.h"
#include "server/shard/shard.h"
#include "tests/server/optimizer/methods.h"

namespace lodestone::server {

// A sweep over all rows of a shard whose tables have a TTL below four seconds; what it evicts is one update, false if
// it is nothing. REQUIRES: some thousands of rows at most.
inline bool Sweep(Shard* shard, uint64_t now_ms, Evictions* evictions = nullptr) {
  std::vector<SweepShare> left = shard->BeginSweep();
  return shard->EvictExpired(now_ms, &left, evictions);
}

// One dense table, and embedding tables that admit and evict in every way.
inline std::vector<v1::TableSpec> SpecsWith(const std::string& optimizer, uint32_t dim = 5) {
  std::vector<v1::TableSpec> specs(4);
  specs[0].set_name("dense");
  specs[0].mutable_dense()->add_dims(23);
  specs[0].mutable_dense()->add_dims(9);
  specs[0].mutable_dense()->set_block_elements(32);
  specs[1].set_name("rows/plain");
  specs[2].set_name("rows/bounded");
  specs[2].mutable_embedding()->mutable_eviction()->set_rows_max(300);
  specs[2].mutable_embedding()->mutable_admission()->set_count_min(2);
  specs[3].set_name("rows/expiring");
  specs[3].mutable_embedding()->mutable_eviction()->set_ttl_ms(200);
  specs[3].mutable_embedding()->mutable_admission()->set_probability(0.7f);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (i > 0) specs[i].mutable_embedding()->set_dim(dim);
    *specs[i].mutable_optimizer() = OptimizerConfig(optimizer);
    specs[i].mutable_initializer()->mutable_uniform();
  }
  return specs;
}

class FilledShard {
 public:
  static constexpr uint64_t kSeed = 17;

  // Shard `id` of `shards`, with nothing applied.
  FilledShard(ShardId id, uint32_t shards, const std::vector<v1::TableSpec>& specs, uint64_t now_ms = 1'000)
      : shard_(std::make_unique<Shard>(id)), now_ms_(now_ms) {
    for (const v1::TableSpec& spec : specs) {
      auto table = Table::Create(spec, kSeed, shards);
      EXPECT_TRUE(table.ok()) << table.status();
      tables_.push_back(*std::move(table));
      shard_->AddTable(tables_.back().get(), now_ms);
    }
  }

  Shard& operator*() { return *shard_; }
  Shard* operator->() { return shard_.get(); }
  uint64_t checksum() const { return ContentChecksum(shard_->CollectState(nullptr)); }
  Table& table(size_t i) { return *tables_[i]; }
  uint64_t now_ms() const { return now_ms_; }
  // The clock of the shard that this one goes on from.
  void SetClock(uint64_t now_ms) { now_ms_ = now_ms; }

  // Pushes number first … last of an endless random sequence, with what reads and expires in between.
  void Run(uint32_t first, uint32_t last) {
    for (uint32_t i = first; i <= last; ++i) Step(i);
  }

  // Applies push `sequence` of `worker`: gradients for `rows` random keys of each embedding table and some blocks.
  Shard::PushResult Push(Incarnation worker, Sequence sequence, uint32_t seed, size_t rows = 40) {
    std::mt19937_64 random(seed);
    std::vector<PartView> parts;
    std::vector<std::vector<BlockIndex>> blocks(tables_.size());
    std::vector<std::vector<Key>> keys(tables_.size());
    std::vector<std::vector<float>> gradients(tables_.size());
    for (size_t t = 0; t < tables_.size(); ++t) {
      Table& table = *tables_[t];
      PartView part;
      part.table = &table;
      size_t floats = 0;
      if (table.is_dense()) {
        for (BlockIndex b = 0; b < table.layout().block_count(); ++b) {
          if (ShardOfBlock(table.id(), b, table.shards()) != shard_->id() || random() % 2 == 0) continue;
          blocks[t].push_back(b);
          floats += table.layout().ElementsOf(b);
        }
        part.blocks = blocks[t];
      } else {
        keys[t] = Keys(&random, table.shards(), rows);
        part.keys = ByteView(reinterpret_cast<const uint8_t*>(keys[t].data()), rows * sizeof(Key));
        part.row_count = rows;
        floats = rows * table.dim();
      }
      gradients[t] = RandomFloats(floats, static_cast<uint32_t>(random()));
      part.gradients = ByteView(reinterpret_cast<const uint8_t*>(gradients[t].data()), floats * sizeof(float));
      parts.push_back(part);
    }
    const auto result = shard_->Push(worker, sequence, parts, now_ms_);
    EXPECT_TRUE(result.ok()) << result.status();
    return *result;
  }

 private:
  void Step(uint32_t i) {
    now_ms_ += 16;
    Push(/*worker=*/1 + i % 3, /*sequence=*/i, /*seed=*/i);
    std::mt19937_64 random(i);
    for (const auto& table : tables_) {
      if (table->is_dense()) continue;
      const std::vector<Key> keys = Keys(&random, table->shards(), 10);
      std::vector<float> values(keys.size() * table->dim());
      shard_->Read(*table, ByteView(reinterpret_cast<const uint8_t*>(keys.data()), keys.size() * sizeof(Key)),
                   keys.size(), now_ms_, values.data());
    }
    if (i % 10 == 0) Sweep(shard_.get(), now_ms_);
  }

  // Keys of this shard, the small ones more often.
  std::vector<Key> Keys(std::mt19937_64* random, uint32_t shards, size_t count) const {
    std::vector<Key> keys;
    while (keys.size() < count) {
      const Key key = (*random)() % ((*random)() % (2000 * shards) + 1);
      if (ShardOfKey(key, shards) == shard_->id()) keys.push_back(key);
    }
    return keys;
  }

  std::vector<std::unique_ptr<Table>> tables_;
  std::unique_ptr<Shard> shard_;
  uint64_t now_ms_;
};

}  // namespace lodestone::server
