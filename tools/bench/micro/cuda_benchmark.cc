// How fast the CUDA kernels are, as a share of what the device's own copy moves, or of its arithmetic: at 64 Ki samples
// of 26 fields of 16 numbers, where everything is larger than the caches. Ends without a word of numbers where there is
// no device.
//
// Bytes are the fewest that an operation can move: each input read once, each output written once.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda.h"
#include "kernels/feature_order.h"
#include "kernels/scratch_array.h"

namespace lodestone::kernels {
namespace {

constexpr size_t kSamples = 65536;
constexpr size_t kFields = 26;
constexpr size_t kDim = 16;
constexpr size_t kDistinct = 1 << 20;
constexpr size_t kHidden = 1024;
constexpr int kQueued = 20;  // Operations in a row, so that starting them costs little.

Backend* backend = nullptr;        // Set by main.
double copy_bytes_per_second = 0;  // Likewise.

// Random numbers on the device: a million, again and again, since drawing them takes longer than all else here.
ScratchArray<float> Random(size_t n) {
  static const auto& values = *new std::vector<float>([] {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> distribution(-1.0f, 1.0f);
    std::vector<float> drawn(1 << 20);
    for (float& value : drawn) value = distribution(random);
    return drawn;
  }());
  ScratchArray<float> buffer(backend);
  float* const to = buffer.Resize(n);
  for (size_t i = 0; i < n && to != nullptr; i += values.size()) {
    backend->CopyIn(Queue::kCompute, std::min(values.size(), n - i) * sizeof(float), values.data(), to + i);
  }
  return buffer;
}

ScratchArray<uint32_t> OnDevice(const uint32_t* values, size_t n) {
  ScratchArray<uint32_t> buffer(backend);
  backend->CopyIn(Queue::kCompute, n * sizeof(uint32_t), values, buffer.Resize(n));
  return buffer;
}

// Times `operation`, which moves so many floats at the least.
template <typename Operation>
void Run(benchmark::State& state, double floats, const Operation& operation) {
  operation();
  if (const absl::Status status = backend->Finish(); !status.ok())
    return state.SkipWithError(status.ToString().c_str());
  for (auto _ : state) {
    for (int i = 0; i < kQueued; ++i) operation();
    if (!backend->Finish().ok()) return state.SkipWithError("failed");
  }
  using benchmark::Counter;
  const double bytes = floats * sizeof(float) * kQueued * static_cast<double>(state.iterations());
  state.counters["bytes/s"] = Counter(bytes, Counter::kIsRate);
  state.counters["percent_of_copy"] = Counter(100 * bytes / copy_bytes_per_second, Counter::kIsRate);
}

void BM_Activate(benchmark::State& state) {
  const size_t n = kSamples * kHidden;
  ScratchArray<float> x = Random(n);
  const ScratchArray<float> bias = Random(kHidden);
  Run(state, 2.0 * n, [&] {
    backend->Activate(static_cast<Activation>(state.range(0)), kSamples, kHidden, bias.data(), x.data(), x.data());
  });
}

void BM_ActivateBackward(benchmark::State& state) {
  const size_t n = kSamples * kHidden;
  const ScratchArray<float> kept = Random(n);
  ScratchArray<float> dx = Random(n);
  const auto activation = static_cast<Activation>(state.range(0));
  Run(state, 3.0 * n, [&] { backend->ActivateBackward(activation, n, kept.data(), dx.data()); });
}

void BM_Dropout(benchmark::State& state) {
  const size_t n = kSamples * kHidden;
  ScratchArray<float> x = Random(n);
  Run(state, 2.0 * n, [&] { backend->Dropout(n, 0.5f, 1, x.data()); });
}

void BM_ColumnSums(benchmark::State& state) {
  const size_t n = kSamples * kHidden;
  const ScratchArray<float> x = Random(n);
  ScratchArray<float> sums = Random(kHidden);
  Run(state, n, [&] { backend->ColumnSums(kSamples, kHidden, x.data(), sums.data()); });
}

void BM_Axpy(benchmark::State& state) {
  const size_t n = kSamples * kHidden;
  const ScratchArray<float> x = Random(n);
  ScratchArray<float> y = Random(n);
  Run(state, 3.0 * n, [&] { backend->Axpy(n, 1e-6f, x.data(), y.data()); });
}

void BM_LogisticLoss(benchmark::State& state) {
  const size_t n = kSamples * kHidden;
  const ScratchArray<float> logits = Random(n), labels = Random(n);
  ScratchArray<float> dlogits = Random(n);
  ScratchArray<double> loss(backend);
  loss.Resize(1);
  Run(state, 3.0 * n,
      [&] { backend->LogisticLoss(n, logits.data(), labels.data(), nullptr, dlogits.data(), nullptr, loss.data()); });
}

void BM_SoftmaxLoss(benchmark::State& state) {
  const size_t classes = 1000;
  const ScratchArray<float> logits = Random(kSamples * classes);
  ScratchArray<float> labels(backend), dlogits = Random(kSamples * classes);
  backend->Fill(kSamples, 1.0f, labels.Resize(kSamples));
  ScratchArray<double> loss(backend);
  loss.Resize(1);
  Run(state, 2.0 * kSamples * classes, [&] {
    backend->SoftmaxLoss(kSamples, classes, logits.data(), labels.data(), nullptr, dlogits.data(), nullptr,
                         loss.data());
  });
}

// A batch, its rows and their gradients. Even rows, or (as real data) half of the features on 100 rows.
struct Features {
  explicit Features(bool skewed) : rows(Random(kDistinct * kDim)), drows(Random(kDistinct * kDim)) {
    std::mt19937 random(1);
    std::vector<uint32_t> offsets, row;
    for (size_t s = 0; s <= kSamples; ++s) offsets.push_back(static_cast<uint32_t>(s * kFields));
    for (size_t f = 0; f < kSamples * kFields; ++f) {
      const uint32_t bits = random();
      row.push_back(skewed && bits % 2 == 0 ? bits / 2 % 100 : bits % kDistinct);
    }
    arrays.Fill({kSamples, offsets.data(), row.data(), nullptr, nullptr}, kDistinct);
    const FeatureOrder host = arrays.View();
    const auto add = [&](const uint32_t* values, size_t n) { return kept.emplace_back(OnDevice(values, n)).data(); };
    order = {host.chunks,
             add(host.feature, row.size()),
             add(host.sample, row.size()),
             add(host.chunk_begin, host.chunks + 1),
             add(host.chunk_row, host.chunks),
             host.long_rows,
             add(host.first_chunk, host.long_rows),
             add(host.end_chunk, host.long_rows)};
    batch = {kSamples, add(offsets.data(), offsets.size()), add(row.data(), row.size()), nullptr, nullptr};
  }

  static constexpr double kFloats = 1.0 * kSamples * kFields * kDim;
  ScratchArray<float> rows, drows;
  FeatureOrderArrays arrays;
  std::vector<ScratchArray<uint32_t>> kept;
  FeatureOrder order;
  SparseBatch batch;
};

void BM_GatherFields(benchmark::State& state) {
  Features features(state.range(0) != 0);
  ScratchArray<float> out = Random(kSamples * kFields * kDim);
  Run(state, 2 * Features::kFloats, [&] {
    backend->GatherFields(features.batch, kFields, kDim, {features.rows.data(), kDim}, kFields * kDim, 0, out.data());
  });
}

// Arguments: skewed, and whether the sums have an order.
void BM_ScatterFields(benchmark::State& state) {
  Features features(state.range(0) != 0);
  if (state.range(1) != 0) features.batch.order = &features.order;
  const ScratchArray<float> dx = Random(kSamples * kFields * kDim);
  Run(state, 3 * Features::kFloats, [&] {
    backend->ScatterFields(features.batch, kFields, kDim, dx.data(), kFields * kDim, 0, {features.drows.data(), kDim});
  });
}

void BM_FactorizationMachine(benchmark::State& state) {
  Features features(state.range(0) != 0);
  ScratchArray<float> sums = Random(kSamples * kDim), out = Random(kSamples);
  Run(state, Features::kFloats, [&] {
    backend->FactorizationMachine(features.batch, kDim, {features.rows.data(), kDim}, sums.data(), out.data());
  });
}

void BM_FactorizationMachineBackward(benchmark::State& state) {
  Features features(state.range(0) != 0);
  if (state.range(1) != 0) features.batch.order = &features.order;
  const ScratchArray<float> sums = Random(kSamples * kDim), dout = Random(kSamples);
  Run(state, 3 * Features::kFloats, [&] {
    backend->FactorizationMachineBackward(features.batch, kDim, {features.rows.data(), kDim}, sums.data(), dout.data(),
                                          {features.drows.data(), kDim});
  });
}

constexpr size_t kVectors = kFields + 1;
constexpr size_t kPairs = kVectors * (kVectors - 1) / 2;

void BM_DotInteraction(benchmark::State& state) {
  const ScratchArray<float> x = Random(kSamples * kVectors * kDim);
  ScratchArray<float> out = Random(kSamples * kPairs);
  Run(state, 1.0 * kSamples * (kVectors * kDim + kPairs),
      [&] { backend->DotInteraction(kSamples, kVectors, kDim, x.data(), kPairs, 0, out.data()); });
}

void BM_DotInteractionBackward(benchmark::State& state) {
  const ScratchArray<float> x = Random(kSamples * kVectors * kDim), dout = Random(kSamples * kPairs);
  ScratchArray<float> dx = Random(kSamples * kVectors * kDim);
  Run(state, 1.0 * kSamples * (3 * kVectors * kDim + kPairs),
      [&] { backend->DotInteractionBackward(kSamples, kVectors, kDim, x.data(), kPairs, 0, dout.data(), dx.data()); });
}

// Arguments: m, n, k.
void BM_MatMul(benchmark::State& state) {
  const size_t m = state.range(0), n = state.range(1), k = state.range(2);
  const ScratchArray<float> a = Random(m * k), b = Random(k * n);
  ScratchArray<float> c = Random(m * n);
  Run(state, static_cast<double>(m * k + k * n + m * n),
      [&] { backend->MatMul(false, false, m, n, k, 1.0f, a.data(), b.data(), 0.0f, c.data()); });
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(m * n * k) * kQueued * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}

constexpr int kLast = static_cast<int>(kLastActivation);
BENCHMARK(BM_Activate)->ArgName("activation")->DenseRange(1, kLast)->UseRealTime();
BENCHMARK(BM_ActivateBackward)->ArgName("activation")->DenseRange(1, kLast)->UseRealTime();
BENCHMARK(BM_Dropout)->UseRealTime();
BENCHMARK(BM_ColumnSums)->UseRealTime();
BENCHMARK(BM_Axpy)->UseRealTime();
BENCHMARK(BM_LogisticLoss)->UseRealTime();
BENCHMARK(BM_SoftmaxLoss)->UseRealTime();
BENCHMARK(BM_GatherFields)->ArgName("skewed")->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(BM_ScatterFields)->ArgNames({"skewed", "ordered"})->ArgsProduct({{0, 1}, {0, 1}})->UseRealTime();
BENCHMARK(BM_FactorizationMachine)->ArgName("skewed")->Arg(0)->Arg(1)->UseRealTime();
BENCHMARK(BM_FactorizationMachineBackward)
    ->ArgNames({"skewed", "ordered"})
    ->ArgsProduct({{0, 1}, {0, 1}})
    ->UseRealTime();
BENCHMARK(BM_DotInteraction)->UseRealTime();
BENCHMARK(BM_DotInteractionBackward)->UseRealTime();
BENCHMARK(BM_MatMul)->ArgNames({"m", "n", "k"})->Args({65536, 256, 429})->Args({65536, 1024, 512})->UseRealTime();

// Bytes read and written per second by the device's own copy of 1 GiB.
double CopySpeed() {
  constexpr size_t kFloats = size_t{1} << 28;
  ScratchArray<float> x(backend), y(backend);
  backend->Fill(kFloats, 1.0f, x.Resize(kFloats));
  y.Resize(kFloats);
  double best = 0;
  for (int round = 0; round < 5; ++round) {
    if (!backend->Finish().ok()) return 0;
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kQueued; ++i) backend->Copy(kFloats, x.data(), y.data());
    if (!backend->Finish().ok()) return 0;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * kFloats * sizeof(float) * kQueued / seconds.count());
  }
  return best;
}

}  // namespace
}  // namespace lodestone::kernels

int main(int argc, char** argv) {
  using namespace lodestone::kernels;
  benchmark::Initialize(&argc, argv);
  const auto cuda = CreateCuda({});
  if (!cuda.ok()) {
    std::printf("skipped: %s\n", cuda.status().ToString().c_str());
    return 0;
  }
  backend = cuda->get();
  copy_bytes_per_second = CopySpeed();
  if (copy_bytes_per_second == 0) {
    std::fprintf(stderr, "%s\n", backend->Finish().ToString().c_str());
    return 1;
  }
  std::printf("%s: the device's own copy moves %.0f GB/s\n", backend->name().c_str(), copy_bytes_per_second / 1e9);
  benchmark::RunSpecifiedBenchmarks();
  return backend->Finish().ok() ? 0 : 1;
}
