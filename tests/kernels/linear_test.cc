// Linear and LinearBackward give what the three products give one by one, whatever is kept from one to the other.
#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/linear_factors.h"
#include "tests/kernels/on_cuda.h"

namespace lodestone::kernels {
namespace {

constexpr uint32_t kSeed = 20261126;

struct Sizes {
  size_t rows, in, out;
};

// The arrays of a layer, in memory that all rounds share.
struct Layer {
  explicit Layer(Backend* backend) : x(backend), w(backend), dy(backend), y(backend), dw(backend), dx(backend) {}
  ScratchArray<float> x, w, dy, y, dw, dx;
};

template <class Kind>
class LinearTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto backend = FirstCudaDevice<Kind>();
    if (!backend.ok()) GTEST_SKIP() << Kind::kName << ": " << backend.status().message();
    backend_ = *backend;
    std::printf("seed %u\n", kSeed);
  }

  std::vector<float> Random(size_t n) {
    std::uniform_real_distribution<float> numbers(-1, 1);
    std::vector<float> values(n);
    for (float& value : values) value = numbers(random_);
    return values;
  }
  void Fill(const std::vector<float>& values, ScratchArray<float>* array) {
    backend_->CopyIn(Queue::kCompute, values.size() * sizeof(float), values.data(), array->Resize(values.size()));
    ASSERT_EQ(backend_->Finish(), absl::OkStatus());
  }
  std::vector<float> Values(const ScratchArray<float>& array) {
    std::vector<float> values(array.size());
    backend_->CopyOut(values.size() * sizeof(float), array.data(), values.data());
    EXPECT_EQ(backend_->Finish(), absl::OkStatus());
    return values;
  }

  // New values in the same memory. Without `dx_beta` the gradient of x is not wanted.
  void Check(const Sizes& s, std::optional<float> dx_beta, Layer* layer, LinearFactors* factors) {
    const std::vector<float> dx_before = Random(s.rows * s.in);
    Fill(Random(s.rows * s.in), &layer->x);
    Fill(Random(s.in * s.out), &layer->w);
    Fill(Random(s.rows * s.out), &layer->dy);
    Fill(dx_before, &layer->dx);
    const float *const x = layer->x.data(), *const w = layer->w.data(), *const dy = layer->dy.data();
    float* const y = layer->y.Resize(s.rows * s.out);
    float* const dw = layer->dw.Resize(s.in * s.out);
    float* const dx = layer->dx.data();
    backend_->Linear(s.rows, s.in, s.out, x, w, y, factors);
    backend_->LinearBackward(s.rows, s.in, s.out, x, w, dy, *factors, dw, dx_beta.has_value() ? dx : nullptr,
                             dx_beta.value_or(0));
    const std::vector<float> got_y = Values(layer->y), got_dw = Values(layer->dw), got_dx = Values(layer->dx);
    Fill(dx_before, &layer->dx);
    backend_->MatMul(false, false, s.rows, s.out, s.in, 1, x, w, 0, y);
    backend_->MatMul(true, false, s.in, s.out, s.rows, 1, x, dy, 0, dw);
    if (dx_beta.has_value()) backend_->MatMul(false, true, s.rows, s.in, s.out, 1, dy, w, *dx_beta, dx);
    EXPECT_EQ(got_y, Values(layer->y));
    EXPECT_EQ(got_dw, Values(layer->dw));
    EXPECT_EQ(got_dx, Values(layer->dx));
  }

  Backend* backend_ = nullptr;
  std::mt19937 random_{kSeed};
};

using Kinds = ::testing::Types<CudaPlain, CudaTf32, CudaTf32Padded, CudaBf16, CudaBf16Padded>;
TYPED_TEST_SUITE(LinearTest, Kinds);

TYPED_TEST(LinearTest, GivesWhatItsProductsGiveWhateverWasKeptBefore) {
  Layer layer(this->backend_);
  LinearFactors factors(this->backend_);
  for (const Sizes& s : std::vector<Sizes>{{33, 17, 9}, {33, 17, 9}, {33, 16, 8}, {5, 17, 9}, {40, 24, 1}, {7, 1, 5}}) {
    for (const std::optional<float> dx_beta :
         {std::optional<float>(), std::optional<float>(0), std::optional<float>(1)}) {
      SCOPED_TRACE(absl::StrCat(s.rows, " x ", s.in, " by ", s.out, " beta ", dx_beta.value_or(-1)));
      this->Check(s, dx_beta, &layer, &factors);
    }
  }
}

TYPED_TEST(LinearTest, ALayerWithoutRowsOrColumnsIsOneOfZeros) {
  Layer layer(this->backend_);
  LinearFactors factors(this->backend_);
  for (const Sizes& s : std::vector<Sizes>{{0, 3, 2}, {4, 0, 2}, {4, 3, 0}}) {
    SCOPED_TRACE(absl::StrCat(s.rows, " x ", s.in, " by ", s.out));
    this->Check(s, 0.0f, &layer, &factors);
  }
}

}  // namespace
}  // namespace lodestone::kernels
