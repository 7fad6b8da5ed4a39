// Elements per second that each optimizer updates in place, on one core; for two of them beside a plain loop that the
// compiler vectorizes for the oldest CPU that the build supports.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "google/protobuf/text_format.h"
#include "server/optimizer/optimizer.h"

namespace lodestone {
namespace {

constexpr int64_t kSmall = 1 << 20;
constexpr int64_t kLarge = 16 << 20;
constexpr int64_t kRow = 16;  // An embedding row.

struct Arrays {
  Arrays(size_t n, size_t state_floats)
      : gradient(n, 0.25f), bytes(n * sizeof(float) + 2), values(n, 1.0f), state(state_floats) {
    std::memcpy(bytes.data() + 2, gradient.data(), n * sizeof(float));
  }
  // Not aligned, as gradients arrive.
  const uint8_t* unaligned() const { return bytes.data() + 2; }

  std::vector<float> gradient;
  std::vector<uint8_t> bytes;
  std::vector<float> values;
  std::vector<float> state;
};

void Update(benchmark::State& state, const char* text) {
  v1::Optimizer config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) std::abort();
  const std::unique_ptr<const Optimizer> optimizer = Optimizer::Create(config).value();
  const size_t n = static_cast<size_t>(state.range(0));
  Arrays arrays(n, optimizer->state_layout().FloatsFor(n));
  optimizer->InitializeState(arrays.state.data(), n);
  const Optimizer::Step step{.learning_rate = 1e-3f};
  for (auto _ : state) {
    optimizer->Update(step, n, arrays.unaligned(), arrays.values.data(), arrays.state.data(), arrays.values.data(),
                      arrays.state.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * n);
}
BENCHMARK_CAPTURE(Update, sgd, "sgd {}")->Arg(kRow)->Arg(kSmall)->Arg(kLarge);
BENCHMARK_CAPTURE(Update, momentum, "momentum {}")->Arg(kRow)->Arg(kSmall)->Arg(kLarge);
BENCHMARK_CAPTURE(Update, nesterov, "nesterov {}")->Arg(kRow)->Arg(kSmall)->Arg(kLarge);
BENCHMARK_CAPTURE(Update, adagrad, "adagrad {}")->Arg(kRow)->Arg(kSmall)->Arg(kLarge);
BENCHMARK_CAPTURE(Update, rmsprop, "rmsprop {}")->Arg(kRow)->Arg(kSmall)->Arg(kLarge);
BENCHMARK_CAPTURE(Update, adam, "adam {}")->Arg(kRow)->Arg(kSmall)->Arg(kLarge);
BENCHMARK_CAPTURE(Update, adamw, "adamw {}")->Arg(kRow)->Arg(kSmall)->Arg(kLarge);
BENCHMARK_CAPTURE(Update, ftrl, "ftrl {}")->Arg(kRow)->Arg(kSmall)->Arg(kLarge);

void PlainSgd(benchmark::State& state) {
  const size_t n = static_cast<size_t>(state.range(0));
  Arrays arrays(n, 0);
  for (auto _ : state) {
    const float* const g = arrays.gradient.data();
    float* const w = arrays.values.data();
    for (size_t i = 0; i < n; ++i) w[i] -= 1e-3f * g[i];
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * n);
}
BENCHMARK(PlainSgd)->Arg(kRow)->Arg(kSmall)->Arg(kLarge);

void PlainAdam(benchmark::State& state) {
  const size_t n = static_cast<size_t>(state.range(0));
  Arrays arrays(n, 2 * n);
  for (auto _ : state) {
    const float* const g = arrays.gradient.data();
    float* const w = arrays.values.data();
    float* const m = arrays.state.data();
    float* const v = arrays.state.data() + n;
    for (size_t i = 0; i < n; ++i) {
      m[i] = 0.9f * m[i] + 0.1f * g[i];
      v[i] = 0.999f * v[i] + 0.001f * g[i] * g[i];
      w[i] -= 1e-3f * m[i] / (std::sqrt(v[i]) + 1e-8f);
    }
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * n);
}
BENCHMARK(PlainAdam)->Arg(kRow)->Arg(kSmall)->Arg(kLarge);

void FindNonFinite(benchmark::State& state) {
  const size_t n = static_cast<size_t>(state.range(0));
  const Arrays arrays(n, 0);
  for (auto _ : state) {
    benchmark::DoNotOptimize(FirstNonFinite(arrays.unaligned(), n));
  }
  state.SetItemsProcessed(state.iterations() * n);
}
BENCHMARK(FindNonFinite)->Arg(kRow)->Arg(kSmall)->Arg(kLarge);

void Norm(benchmark::State& state) {
  const size_t n = static_cast<size_t>(state.range(0));
  const Arrays arrays(n, 0);
  for (auto _ : state) {
    benchmark::DoNotOptimize(GradientNorm(arrays.unaligned(), n, 0));
  }
  state.SetItemsProcessed(state.iterations() * n);
}
BENCHMARK(Norm)->Arg(kRow)->Arg(kSmall)->Arg(kLarge);

void InitializeRow(benchmark::State& state, const char* text) {
  v1::Initializer config;
  if (!google::protobuf::TextFormat::ParseFromString(text, &config)) std::abort();
  std::vector<float> row(kRow);
  uint64_t key = 0;
  for (auto _ : state) {
    InitializeValues(config, 1, key++, 0, row.size(), 0, 0, row.data());
    benchmark::DoNotOptimize(row.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRow);
}
BENCHMARK_CAPTURE(InitializeRow, uniform, "uniform {}");
BENCHMARK_CAPTURE(InitializeRow, normal, "normal {}");

}  // namespace
}  // namespace lodestone

BENCHMARK_MAIN();
