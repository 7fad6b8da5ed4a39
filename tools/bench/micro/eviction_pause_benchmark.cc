// The longest time for which other work waits while a ps makes room in a full table of 10 M rows, or sweeps it for
// expired ones (16 floats, Adagrad): a real store of 64 shards with one executor, which a thread asks for nothing again
// and again. `pause_max_ms` is the longest wait, wall-clock, which a busy machine lengthens; `pause_cpu_max_ms` the
// most CPU time that the process took during one, which it does not; `pauses` counts waits of more than 5 ms. Takes 1.7
// GB.
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/time_source.h"
#include "common/wire/message.h"
#include "common/wire/shard_map.h"
#include "server/store/store.h"

namespace lodestone {
namespace {

constexpr uint32_t kShards = 64;
constexpr uint32_t kDim = 16;
constexpr uint64_t kRows = 10'000'000;
constexpr uint64_t kKeysPerPush = 4096;
constexpr uint64_t kPushes = 500;  // That are measured.
constexpr int kSweeps = 62;        // See all rows.
constexpr double kPauseMs = 5;
constexpr uint64_t kTtlMs = 3600'000;
constexpr Incarnation kWorker = 1;

// A store whose table has had so many rows, one after the other.
class FilledStore {
 public:
  explicit FilledStore(const v1::Eviction& eviction) : store_({.shards = kShards, .time = &time_}) {
    std::vector<ShardId> shards(kShards);
    for (ShardId shard = 0; shard < kShards; ++shard) shards[shard] = shard;
    store_.OwnShards(shards);
    v1::EnsureTablesRequest request;
    request.set_worker_incarnation(kWorker);
    v1::TableSpec& spec = *request.add_tables();
    spec.set_name("rows");
    spec.mutable_embedding()->set_dim(kDim);
    *spec.mutable_embedding()->mutable_eviction() = eviction;
    spec.mutable_optimizer()->mutable_adagrad();
    const auto made = store_.EnsureTables(request);
    LODESTONE_CHECK(made.ok());
    table_ = made->tables(0).id();
    for (uint64_t first = 0; first < kRows; first += kKeysPerPush) Push(first);
  }

  // Pushes the keys from number `first` on, and waits for it.
  void Push(uint64_t first) {
    std::vector<std::vector<Key>> by_shard(kShards);
    for (uint64_t i = 0; i < kKeysPerPush; ++i) {
      const Key key = Mix64(first + i);
      by_shard[ShardOfKey(key, kShards)].push_back(key);
    }
    v1::PushRequest header;
    header.set_worker_incarnation(kWorker);
    header.set_sequence(++sequence_);
    std::string bytes;
    for (ShardId shard = 0; shard < kShards; ++shard) {
      const std::vector<Key>& keys = by_shard[shard];
      if (keys.empty()) continue;
      v1::Part& part = *header.add_parts();
      part.set_shard(shard);
      part.set_table(table_);
      part.set_row_count(static_cast<uint32_t>(keys.size()));
      const std::vector<float> gradients(keys.size() * kDim, 0.01f);
      bytes.append(reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(Key));
      bytes.append(reinterpret_cast<const char*>(gradients.data()), gradients.size() * sizeof(float));
    }
    std::latch done(1);
    store_.pushes().Push(header, Payload({grpc::Slice(bytes)}), [&](const absl::StatusOr<v1::PushResponse>& response) {
      LODESTONE_CHECK(response.ok());
      done.count_down();
    });
    done.wait();
  }

  // Begins a sweep, in so much later a time.
  void SweepAfter(int64_t ms) {
    time_.AdvanceMs(ms);
    store_.Tick();
  }

  // Asks the executor for nothing, as a pull does, and says whether it was idle: it has run that on this thread then.
  bool Ask(ShardId shard) {
    std::thread::id ran_on;
    std::latch done(1);
    const auto answer = [&] {
      ran_on = std::this_thread::get_id();
      done.count_down();
    };
    server::ShardSet& shards = store_.shards();
    shards.executors()[shards.ExecutorOf(shard)].Submit(answer, server::Executor::Order::kFree);
    done.wait();
    return ran_on == std::this_thread::get_id();
  }

  uint64_t rows() const {
    v1::StatusResponse status;
    store_.FillStatus(&status);
    return status.tables(0).rows();
  }

 private:
  ManualTime time_;
  server::Store store_;
  TableId table_ = 0;
  Sequence sequence_ = 0;
};

double CpuMs() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

// How long questions to the executor waited, and what the process computed meanwhile.
class Waits {
 public:
  void Ask(FilledStore* store) {
    const auto began = std::chrono::steady_clock::now();
    const double cpu_ms = CpuMs();
    store->Ask(static_cast<ShardId>(asked_++ % kShards));
    cpu_max_ms_ = std::max(cpu_max_ms_, CpuMs() - cpu_ms);
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
    max_ms_ = std::max(max_ms_, ms);
    pauses_ += ms > kPauseMs;
  }
  void Tell(benchmark::State& state, const FilledStore& store) const {
    state.counters["pause_max_ms"] = max_ms_;
    state.counters["pause_cpu_max_ms"] = cpu_max_ms_;
    state.counters["pauses"] = pauses_;
    state.counters["rows_left"] = static_cast<double>(store.rows());
  }

 private:
  uint64_t asked_ = 0;
  double max_ms_ = 0;
  double cpu_max_ms_ = 0;
  int pauses_ = 0;
};

// Asks while another thread does `work`.
void Measure(benchmark::State& state, const v1::Eviction& eviction, const std::function<void(FilledStore*)>& work) {
  FilledStore store(eviction);
  Waits waits;
  for (auto _ : state) {
    std::atomic<bool> over = false;
    std::thread worker([&] {
      work(&store);
      over.store(true);
    });
    while (!over.load()) waits.Ask(&store);
    worker.join();
  }
  waits.Tell(state, store);
}

// Pushes new rows, or those that are there.
void Push(FilledStore* store, bool new_rows) {
  for (uint64_t i = 0; i < kPushes; ++i) store->Push((new_rows ? kRows : 0) + i * kKeysPerPush);
}

void PushKnownRows(benchmark::State& state) {
  Measure(state, v1::Eviction(), [](FilledStore* store) { Push(store, /*new_rows=*/false); });
}
void PushNewRows(benchmark::State& state) {
  Measure(state, v1::Eviction(), [](FilledStore* store) { Push(store, /*new_rows=*/true); });
}
void PushToFullTable(benchmark::State& state) {
  v1::Eviction eviction;
  eviction.set_rows_max(kRows);
  Measure(state, eviction, [](FilledStore* store) { Push(store, /*new_rows=*/true); });
}
BENCHMARK(PushKnownRows)->Name("eviction-pause/push-known-rows")->Iterations(1)->UseRealTime();
BENCHMARK(PushNewRows)->Name("eviction-pause/push-new-rows")->Iterations(1)->UseRealTime();
BENCHMARK(PushToFullTable)->Name("eviction-pause/push-to-full-table")->Iterations(1)->UseRealTime();

// Sweeps, a second apart, each of which looks at a share of all rows.
void Sweep(benchmark::State& state, int64_t after_ms) {
  v1::Eviction eviction;
  eviction.set_ttl_ms(kTtlMs);
  Measure(state, eviction, [after_ms](FilledStore* store) {
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
      store->SweepAfter(sweep == 0 ? after_ms : 1000);
      while (!store->Ask(0)) {
      }
    }
  });
}
void SweepThatFindsNone(benchmark::State& state) { Sweep(state, 1000); }
void SweepThatFindsAll(benchmark::State& state) { Sweep(state, 2 * kTtlMs); }
BENCHMARK(SweepThatFindsNone)->Name("eviction-pause/sweep/none-expired")->Iterations(1)->UseRealTime();
BENCHMARK(SweepThatFindsAll)->Name("eviction-pause/sweep/all-expired")->Iterations(1)->UseRealTime();

}  // namespace
}  // namespace lodestone

BENCHMARK_MAIN();
