#include "kernels/matmul.h"

#include <string>
#include <vector>

#include "tests/kernels/backend.h"
#include "tests/kernels/exact.h"
#include "tests/kernels/special_values.h"

namespace lodestone::kernels {
namespace {

struct Product {
  bool transpose_a, transpose_b;
  size_t m, n, k;
  float alpha, beta;

  std::string Name() const {
    return std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k) + (transpose_a ? " a'" : "") +
           (transpose_b ? " b'" : "") + " alpha " + std::to_string(alpha) + " beta " + std::to_string(beta);
  }
};

class MatMulTest : public KernelTest {
 protected:
  void Check(const Product& p) {
    const std::vector<float> a = Random(p.m * p.k);
    const std::vector<float> b = Random(p.k * p.n);
    const std::vector<float> before = Random(p.m * p.n);
    std::vector<float> c = p.beta == 0 ? std::vector<float>(p.m * p.n, kNan) : before;
    GetParam().mat_mul(p.transpose_a, p.transpose_b, p.m, p.n, p.k, p.alpha, a.data(), b.data(), p.beta, c.data());
    std::vector<Exact> want(p.m * p.n);
    for (size_t i = 0; i < p.m; ++i) {
      for (size_t j = 0; j < p.n; ++j) {
        Exact& sum = want[i * p.n + j];
        if (p.beta != 0) sum.Add(static_cast<double>(p.beta) * before[i * p.n + j]);
        for (size_t l = 0; l < p.k; ++l) {
          const double left = p.transpose_a ? a[l * p.m + i] : a[i * p.k + l];
          const double right = p.transpose_b ? b[j * p.k + l] : b[l * p.n + j];
          // Times the other factor, times alpha; and both factors, if they are rounded first.
          sum.Add(p.alpha * left * right, 2 + static_cast<int>(2 * GetParam().factor_roundoff));
        }
      }
    }
    ExpectClose(c, want, p.Name());
  }
};

TEST_P(MatMulTest, MultipliesEverySizeTransposedOrNot) {
  constexpr size_t kDimensions[] = {0, 1, 2, 3, 7, 8, 17, 33, 65};
  for (const size_t m : kDimensions) {
    for (const size_t n : kDimensions) {
      for (const size_t k : kDimensions) {
        for (int transposed = 0; transposed < 4; ++transposed) {
          for (const float beta : {0.0f, 1.0f, -0.5f}) {
            Check({(transposed & 1) != 0, (transposed & 2) != 0, m, n, k, beta == 1.0f ? 1.0f : 1.5f, beta});
          }
        }
      }
    }
  }
}

TEST_P(MatMulTest, MultipliesMatricesLargerThanABlock) {
  for (int transposed = 0; transposed < 4; ++transposed) {
    Check({(transposed & 1) != 0, (transposed & 2) != 0, 129, 257, 513, 1.0f, 0.0f});
  }
}

TEST_P(MatMulTest, DoesNotReadTheResultIfBetaIsZero) {
  for (const size_t n : {1, 2, 33}) {
    for (const size_t k : {0, 5}) {
      const std::vector<float> a(2 * k, 1.0f);
      const std::vector<float> b(k * n, 1.0f);
      std::vector<float> c(2 * n, kNan);
      GetParam().mat_mul(false, false, 2, n, k, 1.0f, a.data(), b.data(), 0.0f, c.data());
      ExpectEqual(c, std::vector<float>(2 * n, static_cast<float>(k)), "n " + std::to_string(n));
    }
  }
}

TEST_P(MatMulTest, KeepsNanOfItsFactors) {
  const std::vector<float> a = {1.0f, kNan, 0.0f, 1.0f};
  const std::vector<float> b = {1.0f, 1.0f, 1.0f, 1.0f};
  std::vector<float> c(4);
  GetParam().mat_mul(false, false, 2, 2, 2, 1.0f, a.data(), b.data(), 0.0f, c.data());
  EXPECT_TRUE(std::isnan(c[0]) && std::isnan(c[1]));
  EXPECT_EQ(c[2], 1.0f);
  EXPECT_EQ(c[3], 1.0f);
}

TEST(CpuMatMul, GivesTheSameProductOnSeveralThreads) {
  // Products and sums of small integers are exact in float, so the order of the additions cannot show.
  constexpr size_t kSize = 256;
  std::vector<float> a(kSize * kSize), b(kSize * kSize), one(kSize * kSize), many(kSize * kSize);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(i % 7) - 3.0f;
    b[i] = static_cast<float>(i % 11) - 5.0f;
  }
  cpu::MatMul(false, false, kSize, kSize, kSize, 1.0f, a.data(), b.data(), 0.0f, one.data());
  cpu::SetMatMulThreads(4);
  cpu::MatMul(false, false, kSize, kSize, kSize, 1.0f, a.data(), b.data(), 0.0f, many.data());
  cpu::SetMatMulThreads(0);  // Means one.
  ExpectEqual(many, one, "4 threads");
}

LODESTONE_ON_EVERY_BACKEND(MatMulTest);

INSTANTIATE_TEST_SUITE_P(TensorCores, MatMulTest,
                         testing::Values(CudaRow<CudaTf32>(), CudaRow<CudaBf16>(), CudaRow<CudaTf32Padded>(),
                                         CudaRow<CudaBf16Padded>()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace lodestone::kernels
