// How fast the CPU's kernels are, at the sizes of DeepFM and DLRM on click data (a batch of 1024 samples with 26 fields
// of 16 numbers, an MLP 429-256-128-1) and of an MLP for images (784-512-256-10, batch 128).
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "kernels/activation.h"
#include "kernels/blas_core.h"
#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "kernels/matmul.h"
#include "worker/training/aligned_vector.h"

namespace lodestone::kernels::cpu {
namespace {

constexpr size_t kSamples = 1024;
constexpr size_t kFields = 26;
constexpr size_t kDistinct = 10000;
constexpr size_t kHidden = 256;

std::vector<float> Random(size_t n) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> distribution(-1.0f, 1.0f);
  std::vector<float> values(n);
  for (float& value : values) value = distribution(random);
  return values;
}

// Where the model keeps them.
worker::AlignedFloats Aligned(const std::vector<float>& values) { return {values.begin(), values.end()}; }

void SetFlops(benchmark::State& state, double each) {
  state.counters["FLOP/s"] =
      benchmark::Counter(each * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

void SetFloats(benchmark::State& state, size_t moved_each) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * moved_each * sizeof(float)));
}

// Arguments: m, n, k, and 0: forward; 1: the gradient of the weights; 2: of the input.
void BM_MatMul(benchmark::State& state) {
  const size_t m = state.range(0), n = state.range(1), k = state.range(2);
  const std::vector<float> a = Random(m * k), b = Random(k * n);
  std::vector<float> c(m * n);
  for (auto _ : state) {
    MatMul(state.range(3) == 1, state.range(3) == 2, m, n, k, 1.0f, a.data(), b.data(), 0.0f, c.data());
    benchmark::DoNotOptimize(c.data());
  }
  SetFlops(state, 2.0 * static_cast<double>(m * n * k));
}
BENCHMARK(BM_MatMul)
    ->ArgNames({"m", "n", "k", "pass"})
    ->Args({1024, 256, 429, 0})
    ->Args({429, 256, 1024, 1})
    ->Args({1024, 429, 256, 2})
    ->Args({1024, 128, 256, 0})
    ->Args({1024, 1, 128, 0})
    ->Args({128, 1, 1024, 1})
    ->Args({1024, 128, 1, 2})
    ->Args({128, 512, 784, 0})
    ->Args({784, 512, 128, 1})
    ->Args({128, 256, 512, 0})
    ->Args({128, 10, 256, 0});

void BM_Activate(benchmark::State& state) {
  const std::vector<float> bias = Random(kHidden);
  std::vector<float> x(kSamples * kHidden);
  const auto activation = static_cast<Activation>(state.range(0));
  for (auto _ : state) Activate(activation, kSamples, kHidden, bias.data(), x.data(), x.data());
  SetFloats(state, 2 * x.size());
}
BENCHMARK(BM_Activate)->ArgName("activation")->DenseRange(0, static_cast<int>(kLastActivation));

void BM_ActivateBackward(benchmark::State& state) {
  const std::vector<float> kept = Random(kSamples * kHidden);
  std::vector<float> dx = Random(kept.size());
  const auto activation = static_cast<Activation>(state.range(0));
  for (auto _ : state) ActivateBackward(activation, kept.size(), kept.data(), dx.data());
  SetFloats(state, 3 * kept.size());
}
BENCHMARK(BM_ActivateBackward)->ArgName("activation")->DenseRange(1, static_cast<int>(kLastActivation));

void BM_Dropout(benchmark::State& state) {
  std::vector<float> x = Random(kSamples * kHidden);
  uint64_t seed = 0;
  for (auto _ : state) {
    Dropout(x.size(), 0.5f, ++seed, x.data());
    benchmark::DoNotOptimize(x.data());
  }
  SetFloats(state, 2 * x.size());
}
BENCHMARK(BM_Dropout);

void BM_ColumnSums(benchmark::State& state) {
  const size_t cols = state.range(0);
  const std::vector<float> x = Random(kSamples * cols);
  std::vector<float> sums(cols);
  for (auto _ : state) {
    ColumnSums(kSamples, cols, x.data(), sums.data());
    benchmark::DoNotOptimize(sums.data());
  }
  SetFloats(state, x.size());
}
BENCHMARK(BM_ColumnSums)->Arg(1)->Arg(10)->Arg(256);

void BM_Axpy(benchmark::State& state) {
  const std::vector<float> x = Random(kSamples * kHidden);
  std::vector<float> y(x.size());
  for (auto _ : state) Axpy(x.size(), 1e-6f, x.data(), y.data());
  SetFloats(state, 3 * x.size());
}
BENCHMARK(BM_Axpy);

void BM_CopyColumns(benchmark::State& state) {
  const std::vector<float> x = Random(kSamples * 13);
  std::vector<float> y(kSamples * 429);
  for (auto _ : state) {
    CopyColumns(kSamples, 13, x.data(), 429, 416, y.data());
    benchmark::DoNotOptimize(y.data());
  }
  SetFloats(state, 2 * x.size());
}
BENCHMARK(BM_CopyColumns);

void BM_ExtractColumns(benchmark::State& state) {
  const std::vector<float> x = Random(kSamples * 429);
  std::vector<float> y(kSamples * 416);
  for (auto _ : state) {
    ExtractColumns(kSamples, 416, x.data(), 429, 0, y.data());
    benchmark::DoNotOptimize(y.data());
  }
  SetFloats(state, 2 * y.size());
}
BENCHMARK(BM_ExtractColumns);

template <double (*kLoss)(size_t, const float*, const float*, const float*, float*, float*)>
void BM_ScalarLoss(benchmark::State& state) {
  const std::vector<float> logits = Random(kSamples);
  const std::vector<float> labels(kSamples, 1.0f);
  std::vector<float> dlogits(kSamples), predictions(kSamples);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        kLoss(kSamples, logits.data(), labels.data(), nullptr, dlogits.data(), predictions.data()));
  }
  SetFloats(state, 4 * kSamples);
}
BENCHMARK(BM_ScalarLoss<LogisticLoss>);
BENCHMARK(BM_ScalarLoss<SquaredLoss>);

void BM_SoftmaxLoss(benchmark::State& state) {
  const size_t rows = 128, classes = state.range(0);
  const std::vector<float> logits = Random(rows * classes);
  const std::vector<float> labels(rows, 1.0f);
  std::vector<float> dlogits(rows * classes), predictions(rows);
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        SoftmaxLoss(rows, classes, logits.data(), labels.data(), nullptr, dlogits.data(), predictions.data()));
  }
  SetFloats(state, 2 * rows * classes);
}
BENCHMARK(BM_SoftmaxLoss)->Arg(10)->Arg(1000);

// A batch with random features; rows of `dim` numbers, from the benchmark's argument.
struct Features {
  explicit Features(size_t dim) : dim(dim), rows(Random(kDistinct * dim)), drows(rows.size()) {
    std::mt19937 random(1);
    std::uniform_int_distribution<uint32_t> distribution(0, kDistinct - 1);
    for (size_t s = 0; s <= kSamples; ++s) offsets.push_back(static_cast<uint32_t>(s * kFields));
    for (size_t f = 0; f < kSamples * kFields; ++f) row.push_back(distribution(random));
  }
  SparseBatch View() const { return {kSamples, offsets.data(), row.data(), nullptr}; }
  size_t floats() const { return row.size() * dim; }

  size_t dim;
  std::vector<uint32_t> offsets, row;
  std::vector<float> rows, drows;
};

void EmbeddingDims(benchmark::internal::Benchmark* benchmark) {
  for (const int dim : {1, 2, 8, 10, 16, 64}) benchmark->Arg(dim);
}

void BM_SparseLinear(benchmark::State& state) {
  const Features features(state.range(0));
  std::vector<float> out(kSamples * features.dim);
  for (auto _ : state) SparseLinear(features.View(), features.dim, {features.rows.data(), features.dim}, out.data());
  SetFloats(state, features.floats());
}
BENCHMARK(BM_SparseLinear)->Apply(EmbeddingDims);

void BM_SparseLinearBackward(benchmark::State& state) {
  Features features(state.range(0));
  const std::vector<float> dout = Random(kSamples * features.dim);
  for (auto _ : state)
    SparseLinearBackward(features.View(), features.dim, dout.data(), {features.drows.data(), features.dim});
  SetFloats(state, 2 * features.floats());
}
BENCHMARK(BM_SparseLinearBackward)->Apply(EmbeddingDims);

void BM_FactorizationMachine(benchmark::State& state) {
  const Features features(state.range(0));
  std::vector<float> sums(kSamples * features.dim), out(kSamples);
  for (auto _ : state) {
    FactorizationMachine(features.View(), features.dim, {features.rows.data(), features.dim}, sums.data(), out.data());
  }
  SetFloats(state, features.floats());
}
BENCHMARK(BM_FactorizationMachine)->Apply(EmbeddingDims);

void BM_FactorizationMachineBackward(benchmark::State& state) {
  Features features(state.range(0));
  const std::vector<float> sums = Random(kSamples * features.dim), dout = Random(kSamples);
  for (auto _ : state) {
    FactorizationMachineBackward(features.View(), features.dim, {features.rows.data(), features.dim}, sums.data(),
                                 dout.data(), {features.drows.data(), features.dim});
  }
  SetFloats(state, 3 * features.floats());
}
BENCHMARK(BM_FactorizationMachineBackward)->Apply(EmbeddingDims);

void BM_GatherFields(benchmark::State& state) {
  const Features features(state.range(0));
  const size_t stride = kFields * features.dim + 13;
  std::vector<float> out(kSamples * stride);
  for (auto _ : state) {
    GatherFields(features.View(), kFields, features.dim, {features.rows.data(), features.dim}, stride, 0, out.data());
  }
  SetFloats(state, 2 * features.floats());
}
BENCHMARK(BM_GatherFields)->Apply(EmbeddingDims);

void BM_ScatterFields(benchmark::State& state) {
  Features features(state.range(0));
  const size_t stride = kFields * features.dim + 13;
  const std::vector<float> dx = Random(kSamples * stride);
  for (auto _ : state) {
    ScatterFields(features.View(), kFields, features.dim, dx.data(), stride, 0, {features.drows.data(), features.dim});
  }
  SetFloats(state, 3 * features.floats());
}
BENCHMARK(BM_ScatterFields)->Apply(EmbeddingDims);

constexpr size_t kVectors = kFields + 1;
constexpr size_t kPairs = kVectors * (kVectors - 1) / 2;

void BM_DotInteraction(benchmark::State& state) {
  const size_t dim = state.range(0);
  const worker::AlignedFloats x = Aligned(Random(kSamples * kVectors * dim));
  std::vector<float> out(kSamples * kPairs);
  for (auto _ : state) DotInteraction(kSamples, kVectors, dim, x.data(), kPairs, 0, out.data());
  SetFlops(state, 2.0 * static_cast<double>(kSamples * kPairs * dim));
}
BENCHMARK(BM_DotInteraction)->Arg(8)->Arg(16)->Arg(64);

void BM_DotInteractionBackward(benchmark::State& state) {
  const size_t dim = state.range(0);
  const worker::AlignedFloats x = Aligned(Random(kSamples * kVectors * dim));
  const std::vector<float> dout = Random(kSamples * kPairs);
  worker::AlignedFloats dx(x.size());
  for (auto _ : state) {
    DotInteractionBackward(kSamples, kVectors, dim, x.data(), kPairs, 0, dout.data(), dx.data());
  }
  SetFlops(state, 4.0 * static_cast<double>(kSamples * kPairs * dim));
}
BENCHMARK(BM_DotInteractionBackward)->Arg(8)->Arg(16)->Arg(64);

}  // namespace
}  // namespace lodestone::kernels::cpu

int main(int argc, char** argv) {
  lodestone::kernels::cpu::RestartOnBetterCoreType(argv);  // As the worker.
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
