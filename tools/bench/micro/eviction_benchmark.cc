// The longest time for which the making of room, or a sweep for expired rows, keeps an executor from its other work: a
// shard of a table of 100 M rows in 64 shards (16 floats, Adagrad). "pause_max_ms" is the longest call; times are CPU
// times of the thread.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/base/hash.h"
#include "common/base/types.h"
#include "server/table/embedding_table.h"

namespace lodestone {
namespace {

constexpr uint32_t kDim = 16;
constexpr size_t kRows = 100'000'000 / 64;
constexpr size_t kKeysPerPush = 64;         // A push of 4096 keys brings each shard as many.
constexpr size_t kSweepStepRows = 4 << 10;  // As server/shard/shard.h.
constexpr uint64_t kTtlMs = 3600'000;

double ThreadMs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// The table of a cluster with one shard, full of rows that were pushed at time 0.
class FullTable {
 public:
  explicit FullTable(const v1::Eviction& eviction) {
    v1::TableSpec spec;
    spec.set_name("rows");
    spec.mutable_embedding()->set_dim(kDim);
    *spec.mutable_embedding()->mutable_eviction() = eviction;
    spec.mutable_optimizer()->mutable_adagrad();
    table_ = server::Table::Create(spec, /*cluster_seed=*/1, /*shards=*/1).value();
    rows_ = std::make_unique<server::EmbeddingTable>(table_.get(), 0);
    while (next_ < kRows) PushNew(0);
  }

  // Pushes keys that the table has not seen.
  void PushNew(uint64_t now_ms) {
    for (Key& key : keys_) key = Mix64(next_++);
    rows_->Apply(ByteView(reinterpret_cast<const uint8_t*>(keys_.data()), keys_.size() * sizeof(Key)),
                 ByteView(reinterpret_cast<const uint8_t*>(gradients_.data()), gradients_.size() * sizeof(float)),
                 keys_.size(), now_ms, ++version_);
  }
  bool SweepStep(uint64_t now_ms) { return rows_->EvictExpired(now_ms, ++version_, nullptr, kSweepStepRows); }
  size_t rows() const { return rows_->rows(); }

 private:
  std::unique_ptr<server::Table> table_;
  std::unique_ptr<server::EmbeddingTable> rows_;
  std::vector<Key> keys_ = std::vector<Key>(kKeysPerPush);
  const std::vector<float> gradients_ = std::vector<float>(kKeysPerPush * kDim, 0.01f);
  uint64_t next_ = 0;
  Version version_ = 0;
};

// Runs `step` once for each iteration.
template <typename Step>
void MeasureLongest(benchmark::State& state, const Step& step) {
  double longest_ms = 0;
  for (auto _ : state) {
    const double began_ms = ThreadMs();
    step();
    longest_ms = std::max(longest_ms, ThreadMs() - began_ms);
  }
  state.counters["pause_max_ms"] = longest_ms;
}

void PushToFullTable(benchmark::State& state) {
  v1::Eviction eviction;
  eviction.set_rows_max(kRows);
  FullTable table(eviction);
  MeasureLongest(state, [&] { table.PushNew(1000); });
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kKeysPerPush));
}
BENCHMARK(PushToFullTable)->Name("eviction/push-to-full-table")->Iterations(20'000);

void SweepThatFindsNone(benchmark::State& state) {
  v1::Eviction eviction;
  eviction.set_ttl_ms(kTtlMs);
  FullTable table(eviction);
  MeasureLongest(state, [&] { table.SweepStep(1000); });
}
BENCHMARK(SweepThatFindsNone)->Name("eviction/sweep-step/none-expired")->Iterations(500);

void SweepThatFindsAll(benchmark::State& state) {
  v1::Eviction eviction;
  eviction.set_ttl_ms(kTtlMs);
  FullTable table(eviction);
  MeasureLongest(state, [&] { table.SweepStep(2 * kTtlMs); });
  state.counters["rows_left"] = static_cast<double>(table.rows());
}
BENCHMARK(SweepThatFindsAll)->Name("eviction/sweep-step/all-expired")->Iterations(90);

}  // namespace
}  // namespace lodestone
BENCHMARK_MAIN();
