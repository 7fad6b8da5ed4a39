// A backend as a row of functions on host pointers; see backend.h.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>

#include "kernels/activation.h"
#include "kernels/embedding.h"
#include "kernels/layer_norm.h"
#include "kernels/loss.h"
#include "kernels/matmul.h"

namespace lodestone::kernels {

struct BackendRow {
  std::string name;
  // Highway's bit for the instruction set that the CPU's kernels shall use; 0: they choose.
  int64_t instruction_set = 0;

  // Says why the backend is not there; null, or an empty text: it is.
  std::string (*missing)() = nullptr;
  // By how much matrix products round their factors, in units of float's own rounding.
  double factor_roundoff = 0;

  decltype(&cpu::MatMul) mat_mul;

  decltype(&cpu::Activate) activate;
  decltype(&cpu::ActivateBackward) activate_backward;
  decltype(&cpu::Dropout) dropout;
  decltype(&cpu::ColumnSums) column_sums;
  decltype(&cpu::Axpy) axpy;
  decltype(&cpu::MultiplyAdd) multiply_add;
  decltype(&cpu::CopyColumns) copy_columns;
  decltype(&cpu::ExtractColumns) extract_columns;

  decltype(&cpu::LayerNorm) layer_norm;
  decltype(&cpu::LayerNormBackward) layer_norm_backward;

  decltype(&cpu::LogisticLoss) logistic_loss;
  decltype(&cpu::SoftmaxLoss) softmax_loss;
  decltype(&cpu::SquaredLoss) squared_loss;

  decltype(&cpu::SparseLinear) sparse_linear;
  decltype(&cpu::SparseLinearBackward) sparse_linear_backward;
  decltype(&cpu::FactorizationMachine) factorization_machine;
  decltype(&cpu::FactorizationMachineBackward) factorization_machine_backward;
  decltype(&cpu::GatherFields) gather_fields;
  decltype(&cpu::ScatterFields) scatter_fields;
  decltype(&cpu::MaxFields) max_fields;
  decltype(&cpu::MaxFieldsBackward) max_fields_backward;
  decltype(&cpu::DotInteraction) dot_interaction;
  decltype(&cpu::DotInteractionBackward) dot_interaction_backward;
  decltype(&cpu::MixExperts) mix_experts;
  decltype(&cpu::MixExpertsBackward) mix_experts_backward;
};

inline void PrintTo(const BackendRow& row, std::ostream* out) { *out << row.name; }

}  // namespace lodestone::kernels
