// Rows per second that an embedding table of a ps reads and updates on one core, random keys of a million and of ten
// million, beside two ways of doing just that by hand (rows_by_hand.h). Rows have 16 floats.
//
// Table and Plain take turns every few milliseconds, so that the ratio (a counter) tells little of what else the
// machine does. Times are CPU times of the thread. "Shards" are 64 with the same keys, as the messages of a worker have
// them, 4096 or 512 at a time: all of a message's look-ups in one go, beside ("Apart") one shard after the other.
#include <time.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/wire/shard_map.h"
#include "server/table/embedding_table.h"
#include "server/table/row_index.h"
#include "tools/bench/micro/rows_by_hand.h"

namespace lodestone {
namespace {

constexpr int64_t kMillion = 1'000'000;
constexpr size_t kTurn = 16 * kKeysPerCall;  // Lookups between two turns.
constexpr size_t kTurns = 16;
constexpr unsigned kSeed = 1;

// Random keys of `n`, enough for kTurns.
const std::vector<Key>& QueriesFor(size_t n) {
  static auto* const queries = new std::map<size_t, std::vector<Key>>;
  std::vector<Key>& found = (*queries)[n];
  if (found.empty()) {
    std::mt19937_64 random(kSeed);
    for (size_t i = 0; i < kTurn * kTurns; ++i) found.push_back(KeyNumber(random() % n));
  }
  return found;
}

ByteView BytesOf(const void* data, size_t size) { return ByteView(static_cast<const uint8_t*>(data), size); }

// A table of a cluster with one shard, so that one index holds all keys.
class LodestoneRows {
 public:
  LodestoneRows(size_t n, bool adagrad) {
    v1::TableSpec spec;
    spec.set_name("rows");
    spec.mutable_embedding()->set_dim(kDim);
    if (adagrad) {
      spec.mutable_optimizer()->mutable_adagrad();
    } else {
      spec.mutable_optimizer()->mutable_sgd();
    }
    spec.mutable_optimizer()->set_learning_rate(kRate);
    table_ = server::Table::Create(spec, kSeed, /*shards=*/1).value();
    rows_ = std::make_unique<server::EmbeddingTable>(table_.get(), 0);
    std::vector<Key> keys(kKeysPerCall);
    for (size_t begin = 0; begin < n; begin += kKeysPerCall) {
      const size_t count = std::min(kKeysPerCall, n - begin);
      for (size_t i = 0; i < count; ++i) keys[i] = KeyNumber(begin + i);
      Apply(keys.data(), count);
    }
  }

  void Read(const Key* keys, size_t count, float* dst) {
    rows_->Read(BytesOf(keys, count * sizeof(Key)), count, 0, dst);
  }
  void Apply(const Key* keys, size_t count) {
    rows_->Apply(BytesOf(keys, count * sizeof(Key)), BytesOf(Gradients().data(), count * kDim * sizeof(float)), count,
                 0, ++version_);
  }

 private:
  std::unique_ptr<server::Table> table_;
  std::unique_ptr<server::EmbeddingTable> rows_;
  Version version_ = 0;
};

// The rows of a table in 64 shards. The queries of a call, `kKeys` of them, are those of QueriesFor, ordered by shard.
template <size_t kKeys>
class ShardedRows {
 public:
  static constexpr uint32_t kShards = 64;

  ShardedRows(size_t n, bool adagrad) : adagrad_(adagrad) {
    v1::TableSpec spec;
    spec.set_name("rows");
    spec.mutable_embedding()->set_dim(kDim);
    if (adagrad) {
      spec.mutable_optimizer()->mutable_adagrad();
    } else {
      spec.mutable_optimizer()->mutable_sgd();
    }
    table_ = server::Table::Create(spec, kSeed, kShards).value();
    std::vector<std::vector<Key>> keys(kShards);
    for (size_t i = 0; i < n; ++i) keys[ShardOfKey(KeyNumber(i), kShards)].push_back(KeyNumber(i));
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      rows_.push_back(std::make_unique<server::EmbeddingTable>(table_.get(), 0));
      for (size_t at = 0; at < keys[shard].size(); at += kKeysPerCall) {
        const size_t count = std::min(kKeysPerCall, keys[shard].size() - at);
        rows_[shard]->Apply(BytesOf(&keys[shard][at], count * sizeof(Key)),
                            BytesOf(Gradients().data(), count * kDim * sizeof(float)), count, 0, at + 1);
      }
    }
    queries_ = QueriesFor(n);
    for (size_t call = 0; call < queries_.size(); call += kKeys) {
      std::stable_sort(queries_.begin() + call, queries_.begin() + call + kKeys,
                       [](Key a, Key b) { return ShardOfKey(a, kShards) < ShardOfKey(b, kShards); });
      std::vector<uint32_t> counts(kShards);
      for (size_t i = call; i < call + kKeys; ++i) ++counts[ShardOfKey(queries_[i], kShards)];
      counts_.push_back(std::move(counts));
    }
  }

  void Run(size_t call, bool together, float* dst) { adagrad_ ? Apply(call, together) : Read(call, together, dst); }

 private:
  // As a ps applies a push: the look-ups in the shard that comes next have begun, or have not.
  void Apply(size_t call, bool together) {
    const Key* keys = queries_.data() + call * kKeys;
    parts_.clear();
    for (const uint32_t count : counts_[call]) {
      parts_.emplace_back(BytesOf(keys, count * sizeof(Key)), count);
      keys += count;
    }
    for (size_t shard = 0; shard < kShards; ++shard) {
      const auto& [part, count] = parts_[shard];
      if (together && shard + 1 < kShards) {
        rows_[shard + 1]->Prefetch(parts_[shard + 1].first, parts_[shard + 1].second);
      }
      rows_[shard]->Apply(part, BytesOf(Gradients().data(), count * kDim * sizeof(float)), count, 0, ++version_);
    }
  }
  void Read(size_t call, bool together, float* dst) {
    const Key* keys = queries_.data() + call * kKeys;
    wanted_.clear();
    for (uint32_t shard = 0; shard < kShards; ++shard) {
      const uint32_t count = counts_[call][shard];
      const server::EmbeddingTable::Wanted wanted{rows_[shard].get(), BytesOf(keys, count * sizeof(Key)), count, dst};
      if (together) {
        wanted_.push_back(wanted);
      } else {
        server::EmbeddingTable::Read({&wanted, 1}, 0);
      }
      keys += count;
      dst += count * kDim;
    }
    server::EmbeddingTable::Read(wanted_, 0);
  }

  const bool adagrad_;
  std::unique_ptr<server::Table> table_;
  std::vector<std::unique_ptr<server::EmbeddingTable>> rows_;
  Version version_ = kTurn;
  std::vector<Key> queries_;
  std::vector<std::vector<uint32_t>> counts_;  // By call: keys of each shard.
  std::vector<server::EmbeddingTable::Wanted> wanted_;
  std::vector<std::pair<ByteView, size_t>> parts_;  // Keys of each shard, and how many.
};

// Tables take seconds to fill: the last of each kind stays.
template <typename Rows>
Rows& RowsFor(size_t n, bool adagrad) {
  static std::pair<size_t, bool> which;
  static Rows* kept = nullptr;
  if (kept == nullptr || which != std::pair(n, adagrad)) {
    delete kept;  // Before the next one takes memory.
    kept = new Rows(n, adagrad);
    which = {n, adagrad};
  }
  return *kept;
}

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The time of turn number `turn` over random keys.
template <typename Rows>
double Turn(size_t turn, size_t n, bool adagrad, Rows* rows) {
  static auto* const values = new std::vector<float>(kKeysPerCall * kDim);
  const Key* const keys = QueriesFor(n).data() + turn * kTurn;
  const double start = CpuSeconds();
  for (size_t i = 0; i < kTurn; i += kKeysPerCall) {
    if (adagrad) {
      rows->Apply(keys + i, kKeysPerCall);
    } else {
      rows->Read(keys + i, kKeysPerCall, values->data());
      benchmark::DoNotOptimize(values->data());
    }
    benchmark::ClobberMemory();
  }
  return CpuSeconds() - start;
}

// `adagrad`: updates rows with state; otherwise reads rows without.
template <typename Rows>
void Alone(benchmark::State& state, bool adagrad) {
  const size_t n = static_cast<size_t>(state.range(0));
  Rows& rows = RowsFor<Rows>(n, adagrad);
  for (auto _ : state) {
    double seconds = 0;
    for (size_t turn = 0; turn < kTurns; ++turn) seconds += Turn(turn, n, adagrad, &rows);
    state.SetIterationTime(seconds);
  }
  state.SetItemsProcessed(state.iterations() * kTurns * kTurn);
}

void BesidePlain(benchmark::State& state, bool adagrad) {
  const size_t n = static_cast<size_t>(state.range(0));
  LodestoneRows& rows = RowsFor<LodestoneRows>(n, adagrad);
  PlainRows& plain_rows = RowsFor<PlainRows>(n, adagrad);
  double plain = 0;
  double ours = 0;
  for (auto _ : state) {
    double seconds = 0;
    for (size_t turn = 0; turn < kTurns; ++turn) {
      seconds += Turn(turn, n, adagrad, &rows);
      plain += Turn(turn, n, adagrad, &plain_rows);
    }
    ours += seconds;
    state.SetIterationTime(seconds);
  }
  state.SetItemsProcessed(state.iterations() * kTurns * kTurn);
  state.counters["ratio"] = plain / ours;
  state.counters["plain_per_second"] = static_cast<double>(state.iterations() * kTurns * kTurn) / plain;
}

// Reads from shards, or applies to them, in turns the one way and the other; the rate is that of the former.
template <size_t kKeys>
void BesideTheOther(benchmark::State& state, bool adagrad, bool together) {
  ShardedRows<kKeys>& rows = RowsFor<ShardedRows<kKeys>>(static_cast<size_t>(state.range(0)), adagrad);
  static auto* const values = new std::vector<float>(kKeys * kDim);
  const auto turn = [&](size_t number, bool way) {
    const double start = CpuSeconds();
    for (size_t call = 0; call < kTurn / kKeys; ++call) {
      rows.Run(number * (kTurn / kKeys) + call, way, values->data());
      benchmark::DoNotOptimize(values->data());
      benchmark::ClobberMemory();
    }
    return CpuSeconds() - start;
  };
  double ours = 0;
  double other = 0;
  for (auto _ : state) {
    double seconds = 0;
    for (size_t number = 0; number < kTurns; ++number) {
      seconds += turn(number, together);
      // Other keys, which the caches do not know from just before.
      other += turn((number + kTurns / 2) % kTurns, !together);
    }
    ours += seconds;
    state.SetIterationTime(seconds);
  }
  state.SetItemsProcessed(state.iterations() * kTurns * kTurn);
  state.counters["ratio"] = other / ours;
}

// Insertions into the index of a shard, one by one, and the longest of them, in CPU time: 1.6 million keys are what one
// of 64 shards has of 100 million.
void Insertions(benchmark::State& state) {
  const auto count = static_cast<Key>(state.range(0));
  double longest_us = 0;
  for (auto _ : state) {
    server::RowIndex index;
    for (Key key = 0; key < count; ++key) {
      const double start = CpuSeconds();
      if (index.full()) index.Grow();
      index.Insert(KeyNumber(key), static_cast<server::RowId>(key));
      longest_us = std::max(longest_us, 1e6 * (CpuSeconds() - start));
    }
  }
  state.SetItemsProcessed(static_cast<int64_t>(count) * static_cast<int64_t>(state.iterations()));
  state.counters["pause_max_us"] = longest_us;
}

double Least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }
double Most(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

void Register() {
  benchmark::RegisterBenchmark("Insertions", Insertions)->Arg(1'600'000)->Unit(benchmark::kMillisecond);
  for (const int64_t n : {kMillion, 10 * kMillion}) {
    for (const bool adagrad : {false, true}) {
      const auto add = [&](const std::string& name, auto function) {
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { function(state, adagrad); })
            ->Arg(n)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond)
            ->ComputeStatistics("min", Least)
            ->ComputeStatistics("max", Most);
      };
      add(adagrad ? "Table/adagrad" : "Table/read", BesidePlain);
      add(adagrad ? "PlainAdagrad" : "PlainRead", Alone<PlainRows>);
      add(adagrad ? "FlatHashMap/adagrad" : "FlatHashMap/read", Alone<FlatHashMapRows>);
      const std::string shards = adagrad ? "Shards/adagrad" : "Shards/read";
      add(shards, [](benchmark::State& state, bool a) { BesideTheOther<kKeysPerCall>(state, a, true); });
      add(shards + "Apart", [](benchmark::State& state, bool a) { BesideTheOther<kKeysPerCall>(state, a, false); });
      add(shards + "512", [](benchmark::State& state, bool a) { BesideTheOther<512>(state, a, true); });
      add(shards + "512Apart", [](benchmark::State& state, bool a) { BesideTheOther<512>(state, a, false); });
    }
  }
}

}  // namespace
}  // namespace lodestone

int main(int argc, char** argv) {
  lodestone::Register();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
