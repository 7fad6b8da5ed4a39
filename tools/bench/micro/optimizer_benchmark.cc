// Elements per second that each optimizer updates on one core: alone on arrays ("Update"), and as a ps does it, block
// by block of a dense table ("Table"), beside a straightforward loop over plain arrays that the compiler vectorizes for
// this CPU ("Plain").
//
// Table and its Plain loop take turns every few milliseconds, so that the ratio (a counter) tells little of what else
// the machine does. Times are CPU times of the thread.
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "server/optimizer/clipping.h"
#include "server/optimizer/initializer.h"
#include "server/optimizer/optimizer.h"
#include "server/table/dense_table.h"
#include "server/table/slab_pool.h"

namespace lodestone {
namespace {

constexpr int64_t kRow = 16;  // An embedding row.
constexpr int64_t kSmall = 1 << 20;
constexpr int64_t kLarge = 64 << 20;
constexpr size_t kTurn = 4 << 20;  // Elements between two turns of Table and Plain.

// Compiled for the instruction sets of the machines that Lodestone is for.
#if defined(__x86_64__)
#define LODESTONE_FOR_EACH_CPU(TYPE, NAME, ARGS, CALL)                                                        \
  __attribute__((target("avx512f,avx512vl,avx512dq,fma"))) TYPE NAME##Avx512 ARGS { return NAME##Loop CALL; } \
  __attribute__((target("avx2,fma"))) TYPE NAME##Avx2 ARGS { return NAME##Loop CALL; }                        \
  TYPE NAME ARGS {                                                                                            \
    if (__builtin_cpu_supports("avx512dq")) return NAME##Avx512 CALL;                                         \
    if (__builtin_cpu_supports("avx2")) return NAME##Avx2 CALL;                                               \
    return NAME##Loop CALL;                                                                                   \
  }
#else
#define LODESTONE_FOR_EACH_CPU(TYPE, NAME, ARGS, CALL) \
  TYPE NAME ARGS { return NAME##Loop CALL; }
#endif
#define LODESTONE_PLAIN(NAME)                                                                           \
  LODESTONE_FOR_EACH_CPU(void, NAME, (size_t n, const float* g, float* w, float* first, float* second), \
                         (n, g, w, first, second))

// The straightforward loops.
__attribute__((always_inline)) inline void SgdLoop(size_t n, const float* g, float* w, float*, float*) {
  for (size_t i = 0; i < n; ++i) w[i] -= 1e-3f * g[i];
}
__attribute__((always_inline)) inline void MomentumLoop(size_t n, const float* g, float* w, float* m, float*) {
  for (size_t i = 0; i < n; ++i) {
    m[i] = 0.9f * m[i] + g[i];
    w[i] -= 1e-3f * m[i];
  }
}
__attribute__((always_inline)) inline void AdagradLoop(size_t n, const float* g, float* w, float* s, float*) {
  for (size_t i = 0; i < n; ++i) {
    s[i] += g[i] * g[i];
    w[i] -= 1e-3f * g[i] / (std::sqrt(s[i]) + 1e-8f);
  }
}
__attribute__((always_inline)) inline void AdamLoop(size_t n, const float* g, float* w, float* m, float* v) {
  for (size_t i = 0; i < n; ++i) {
    m[i] = 0.9f * m[i] + 0.1f * g[i];
    v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
    w[i] -= 1e-3f * m[i] / (std::sqrt(v[i]) + 1e-8f);
  }
}
LODESTONE_PLAIN(Sgd)
LODESTONE_PLAIN(Momentum)
LODESTONE_PLAIN(Adagrad)
LODESTONE_PLAIN(Adam)

struct Method {
  const char* name;
  void (*plain)(size_t n, const float* g, float* w, float* first, float* second);
};
constexpr Method kMethods[] = {{"sgd", Sgd}, {"momentum", Momentum}, {"adagrad", Adagrad}, {"adam", Adam}};

v1::Optimizer ConfigOf(const std::string& method) {
  v1::Optimizer config;
  if (!google::protobuf::TextFormat::ParseFromString(method + " {} learning_rate: 1e-3", &config)) std::abort();
  return config;
}

// On huge pages where there are some, and each of the arrays set off by another number of cache lines.
class Array {
 public:
  Array(size_t n, size_t set_off_lines, float value)
      : memory_(server::AllocateZeroed((n + 16 * set_off_lines) * sizeof(float))),
        floats_(static_cast<float*>(memory_.get()) + 16 * set_off_lines) {
    std::fill_n(floats_, n, value);
  }
  float* floats() const { return floats_; }
  const uint8_t* bytes() const { return reinterpret_cast<const uint8_t*>(floats_); }

 private:
  server::LargeMemory memory_;
  float* floats_;
};

struct PlainArrays {
  explicit PlainArrays(size_t n) : gradient(n, 0, 0.25f), values(n, 9, 1), first(n, 35, 0.5f), second(n, 53, 0.5f) {}
  Array gradient, values, first, second;
};

// The arrays of the largest size take a second to make: they are kept.
PlainArrays& ArraysFor(size_t n) {
  static auto* const arrays = new std::map<size_t, std::unique_ptr<PlainArrays>>;
  std::unique_ptr<PlainArrays>& found = (*arrays)[n];
  if (found == nullptr) found = std::make_unique<PlainArrays>(n);
  return *found;
}

double CpuSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void Update(benchmark::State& state, const std::string& method) {
  const std::unique_ptr<const server::Optimizer> optimizer = server::Optimizer::Create(ConfigOf(method)).value();
  const size_t n = static_cast<size_t>(state.range(0));
  const Array gradient(n + 1, 0, 0.25f);
  const uint8_t* const unaligned = gradient.bytes() + 2;  // As gradients arrive; finite in any case.
  const Array values(n, 9, 1);
  const Array moments(optimizer->state_layout().FloatsFor(n), 35, 0);
  optimizer->InitializeState(moments.floats(), n);
  const server::Optimizer::Step step{.learning_rate = 1e-3f};
  for (auto _ : state) {
    optimizer->Update(step, {n, 0, n}, unaligned, values.floats(), moments.floats(), values.floats(), moments.floats());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * n);
}

void UpdateRows(benchmark::State& state, const std::string& method) {
  constexpr size_t kRows = 32;
  const std::unique_ptr<const server::Optimizer> optimizer = server::Optimizer::Create(ConfigOf(method)).value();
  const size_t row_floats = kRow + optimizer->state_layout().FloatsFor(kRow);
  const Array gradient(kRow, 0, 0.25f);
  const Array values(kRows * row_floats, 1, 0.5f);
  std::vector<server::RowUpdate> rows;
  for (size_t i = 0; i < kRows; ++i) rows.push_back({gradient.bytes(), values.floats() + i * row_floats});
  for (auto _ : state) {
    optimizer->UpdateRows({.learning_rate = 1e-3f}, kRow, rows);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRows * kRow);
}

void Plain(benchmark::State& state, const Method& method) {
  const size_t n = static_cast<size_t>(state.range(0));
  const PlainArrays& a = ArraysFor(n);
  for (auto _ : state) {
    method.plain(n, a.gradient.floats(), a.values.floats(), a.first.floats(), a.second.floats());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * n);
}

void UpdateTable(benchmark::State& state, const Method& method) {
  const size_t n = static_cast<size_t>(state.range(0));
  v1::TableSpec spec;
  spec.set_name("dense");
  spec.mutable_dense()->add_dims(n);
  *spec.mutable_optimizer() = ConfigOf(method.name);
  spec.mutable_initializer()->mutable_constant()->set_value(1);
  const std::unique_ptr<server::Table> table = server::Table::Create(spec, /*cluster_seed=*/1, /*shards=*/1).value();
  server::DenseTable dense(table.get(), 0);
  const size_t block = table->layout().block_elements;
  if (n % (2 * kTurn) != 0) std::abort();
  const PlainArrays& a = ArraysFor(n);
  double ours = 0;
  double plain = 0;
  Version version = 0;
  for (auto _ : state) {
    const double ours_before = ours;
    ++version;
    for (size_t turn = 0; turn < n; turn += kTurn) {
      const size_t end = std::min(n, turn + kTurn);
      double start = CpuSeconds();
      for (size_t at = turn; at < end; at += block) {
        const ByteView gradient(a.gradient.bytes() + at * sizeof(float), std::min(block, n - at) * sizeof(float));
        dense.Apply(static_cast<BlockIndex>(at / block), gradient, version);
      }
      ours += CpuSeconds() - start;
      // Elsewhere: what Table has just read of the gradient is still in the cache.
      const size_t other = (turn + n / 2) % n;
      start = CpuSeconds();
      method.plain(end - turn, a.gradient.floats() + other, a.values.floats() + other, a.first.floats() + other,
                   a.second.floats() + other);
      plain += CpuSeconds() - start;
    }
    state.SetIterationTime(ours - ours_before);
  }
  state.SetItemsProcessed(state.iterations() * n);
  state.counters["ratio"] = plain / ours;
  state.counters["plain_per_second"] = static_cast<double>(state.iterations() * n) / plain;
}

void FindNonFinite(benchmark::State& state) {
  const size_t n = static_cast<size_t>(state.range(0));
  const Array values(n + 1, 0, 0.25f);
  for (auto _ : state) benchmark::DoNotOptimize(server::FirstNonFinite(values.bytes() + 2, n));
  state.SetItemsProcessed(state.iterations() * n);
}
BENCHMARK(FindNonFinite)->Arg(kRow)->Arg(kSmall)->Arg(kLarge);

void Norm(benchmark::State& state) {
  const size_t n = static_cast<size_t>(state.range(0));
  const Array values(n + 1, 0, 0.25f);
  const ByteView gradient(values.bytes() + 2, n * sizeof(float));
  for (auto _ : state) benchmark::DoNotOptimize(server::GradientNorm(gradient, 0));
  state.SetItemsProcessed(state.iterations() * n);
}
BENCHMARK(Norm)->Arg(kRow)->Arg(kSmall)->Arg(kLarge);

void InitializeRow(benchmark::State& state, const char* text) {
  v1::Initializer config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) std::abort();
  std::vector<float> row(kRow);
  uint64_t key = 0;
  for (auto _ : state) {
    server::InitializeValues(config, 1, key++, 0, row.size(), 0, 0, row.data());
    benchmark::DoNotOptimize(row.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRow);
}
BENCHMARK_CAPTURE(InitializeRow, uniform, "uniform {}");
BENCHMARK_CAPTURE(InitializeRow, normal, "normal {}");

double Least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }
double Most(const std::vector<double>& values) { return *std::max_element(values.begin(), values.end()); }

void RegisterMethods() {
  const google::protobuf::OneofDescriptor& methods = *v1::Optimizer::descriptor()->FindOneofByName("kind");
  for (int i = 0; i < methods.field_count(); ++i) {
    const std::string name = methods.field(i)->name();
    benchmark::RegisterBenchmark(("Update/" + name).c_str(), [name](auto& state) { Update(state, name); })
        ->Arg(kRow)
        ->Arg(kSmall);
    benchmark::RegisterBenchmark(("UpdateRows/" + name).c_str(), [name](auto& state) { UpdateRows(state, name); });
  }
  for (const Method& method : kMethods) {
    std::string name = method.name;
    benchmark::RegisterBenchmark(("Table/" + name).c_str(), [method](auto& state) { UpdateTable(state, method); })
        ->Arg(kLarge)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond)
        ->ComputeStatistics("min", Least)
        ->ComputeStatistics("max", Most);
    name[0] = static_cast<char>(name[0] - 'a' + 'A');
    benchmark::RegisterBenchmark(("Plain" + name).c_str(), [method](auto& state) { Plain(state, method); })
        ->Arg(kRow)
        ->Arg(kSmall)
        ->Arg(kLarge);
  }
}

}  // namespace
}  // namespace lodestone

int main(int argc, char** argv) {
  lodestone::RegisterMethods();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
