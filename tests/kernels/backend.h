// The backends that every kernel test runs on, each as a row of functions: the CPU, once for each instruction set that
// this machine knows, and CUDA, which is skipped by name where there is no device. Built with emulated/ (the tests with
// "emulated" in their names) CUDA's rows run on the CPU.
//
// Functions take host pointers. A backend whose memory is elsewhere puts functions into its row that copy there and
// back.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "hwy/targets.h"
#include "kernels/activation.h"
#include "kernels/embedding.h"
#include "kernels/layer_norm.h"
#include "kernels/loss.h"
#include "kernels/matmul.h"
#include "tests/kernels/cuda_row.h"
#include "tests/kernels/row.h"

namespace lodestone::kernels {

// The CPU's kernels, once for each instruction set that this machine and they know.
inline std::vector<BackendRow> CpuRows() {
  // Those that kernels/BUILD leaves out, and one of the two names of the code without any instruction set.
  constexpr int64_t kLeftOut = HWY_SSSE3 | HWY_AVX3_DL | HWY_SCALAR;
  std::vector<BackendRow> rows;
  for (int64_t bits = hwy::SupportedTargets() & ~kLeftOut; bits != 0; bits &= bits - 1) {
    const int64_t bit = bits & -bits;
    rows.push_back({.name = std::string("cpu_") + hwy::TargetName(bit),
                    .instruction_set = bit,
                    .mat_mul = cpu::MatMul,
                    .activate = cpu::Activate,
                    .activate_backward = cpu::ActivateBackward,
                    .dropout = cpu::Dropout,
                    .column_sums = cpu::ColumnSums,
                    .axpy = cpu::Axpy,
                    .multiply_add = cpu::MultiplyAdd,
                    .copy_columns = cpu::CopyColumns,
                    .extract_columns = cpu::ExtractColumns,
                    .layer_norm = cpu::LayerNorm,
                    .layer_norm_backward = cpu::LayerNormBackward,
                    .logistic_loss = cpu::LogisticLoss,
                    .softmax_loss = cpu::SoftmaxLoss,
                    .squared_loss = cpu::SquaredLoss,
                    .sparse_linear = cpu::SparseLinear,
                    .sparse_linear_backward = cpu::SparseLinearBackward,
                    .factorization_machine = cpu::FactorizationMachine,
                    .factorization_machine_backward = cpu::FactorizationMachineBackward,
                    .gather_fields = cpu::GatherFields,
                    .scatter_fields = cpu::ScatterFields,
                    .max_fields = cpu::MaxFields,
                    .max_fields_backward = cpu::MaxFieldsBackward,
                    .dot_interaction = cpu::DotInteraction,
                    .dot_interaction_backward = cpu::DotInteractionBackward,
                    .mix_experts = cpu::MixExperts,
                    .mix_experts_backward = cpu::MixExpertsBackward});
  }
  return rows;
}

inline std::vector<BackendRow> Backends() {
  std::vector<BackendRow> rows = CpuRows();
  rows.push_back(CudaRow<CudaPlain>());
  rows.push_back(CudaRow<CudaOrdered>());
  return rows;
}

// The fixture: one backend, and random numbers from a fixed seed.
class KernelTest : public testing::TestWithParam<BackendRow> {
 protected:
  static constexpr uint32_t kSeed = 20240229;

  void SetUp() override {
    std::printf("seed %u\n", kSeed);
    if (GetParam().missing != nullptr) {
      const std::string missing = GetParam().missing();
      if (!missing.empty()) GTEST_SKIP() << GetParam().name << ": " << missing;
    }
    UseInstructionSet(GetParam().instruction_set);
  }
  void TearDown() override { UseInstructionSet(0); }

  // n numbers, evenly from [-limit, limit).
  std::vector<float> Random(size_t n, float limit = 1.0f) {
    std::uniform_real_distribution<float> distribution(-limit, limit);
    std::vector<float> values(n);
    for (float& value : values) value = distribution(random_);
    return values;
  }

  // n indices, evenly from [0, end).
  std::vector<uint32_t> RandomIndices(size_t n, uint32_t end) {
    std::uniform_int_distribution<uint32_t> distribution(0, end - 1);
    std::vector<uint32_t> indices(n);
    for (uint32_t& index : indices) index = distribution(random_);
    return indices;
  }

  std::mt19937 random_{kSeed};

 private:
  static void UseInstructionSet(int64_t bit) {
    hwy::SetSupportedTargetsForTest(bit);
    hwy::GetChosenTarget().DeInit();
  }
};

// Around the widths of all vectors, and nothing at all.
inline constexpr size_t kSizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65};

// Runs the fixture's tests, a subclass of KernelTest, on every backend.
#define LODESTONE_ON_EVERY_BACKEND(fixture)                                  \
  INSTANTIATE_TEST_SUITE_P(Backends, fixture, testing::ValuesIn(Backends()), \
                           [](const auto& test) { return test.param.name; })

}  // namespace lodestone::kernels
