// What the counting of a shard's load and the sampling of its keys cost, beside the update that they are counted at:
// one shard's share of a push of rows (16 floats, Adagrad) of 100,000, by its number of keys.
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/base/byte_view.h"
#include "common/base/hash.h"
#include "common/base/types.h"
#include "server/store/hot_keys.h"
#include "server/store/shard_loads.h"
#include "server/table/embedding_table.h"

namespace lodestone {
namespace {

constexpr uint32_t kDim = 16;
constexpr uint64_t kRows = 100'000;
constexpr uint32_t kShards = 64;
constexpr size_t kBatches = 64;  // That are pushed in turn.

template <typename T>
ByteView ViewOf(const std::vector<T>& values) {
  return ByteView(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T));
}

// Batches of so many distinct keys.
std::vector<std::vector<Key>> BatchesOf(size_t keys) {
  std::mt19937_64 random(1);
  std::vector<std::vector<Key>> batches(kBatches);
  for (std::vector<Key>& batch : batches) {
    const uint64_t first = random() % kRows;
    for (size_t i = 0; i < keys; ++i) batch.push_back(Mix64((first + i) % kRows));
  }
  return batches;
}

void BM_Update(benchmark::State& state) {
  v1::TableSpec spec;
  spec.set_name("rows");
  spec.mutable_embedding()->set_dim(kDim);
  spec.mutable_optimizer()->mutable_adagrad();
  const auto table = server::Table::Create(spec, /*cluster_seed=*/1, /*shards=*/1).value();
  server::EmbeddingTable rows(table.get(), 0);
  const std::vector<std::vector<Key>> batches = BatchesOf(static_cast<size_t>(state.range(0)));
  const std::vector<float> gradients(batches[0].size() * kDim, 0.01f);
  size_t next = 0;
  Version version = 0;
  for (auto _ : state) {
    const std::vector<Key>& keys = batches[next++ % kBatches];
    rows.Apply(ViewOf(keys), ViewOf(gradients), keys.size(), 0, ++version);
  }
}
BENCHMARK(BM_Update)->Arg(1)->Arg(16)->Arg(64)->Arg(256);

void BM_CountLoad(benchmark::State& state) {
  server::ShardLoads loads(kShards);
  ShardId shard = 0;
  for (auto _ : state) loads.CountPush(shard++ % kShards, 1000);
}
BENCHMARK(BM_CountLoad);

void BM_SampleKeys(benchmark::State& state) {
  server::HotKeys hot_keys(kShards);
  const std::vector<std::vector<Key>> batches = BatchesOf(static_cast<size_t>(state.range(0)));
  size_t next = 0;
  for (auto _ : state) {
    const std::vector<Key>& keys = batches[next % kBatches];
    hot_keys.Count(static_cast<ShardId>(next++ % kShards), 1, ViewOf(keys), keys.size());
  }
}
BENCHMARK(BM_SampleKeys)->Arg(1)->Arg(16)->Arg(64)->Arg(256);

}  // namespace
}  // namespace lodestone

BENCHMARK_MAIN();
