// The plan of a configured model for given data: its terms and their sizes, its loss, and the tables that hold its
// parameters.
//
// Thread safety: pure functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/activation_function.h"
#include "proto/config.pb.h"
#include "proto/table.pb.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

// A fully connected layer.
struct DenseLayer {
  size_t in = 0;
  size_t out = 0;
  // activation(x W + b), or without one x W alone: the model's own bias is the last layer's.
  kernels::Activation activation = kernels::Activation::kNone;

  bool has_bias() const { return activation != kernels::Activation::kNone; }
};

// The terms of logits = bias + linear(sparse rows, numeric) + factorization machine(sparse rows) + mlp(...).
struct ModelPlan {
  v1::ModelConfig::Type type = v1::ModelConfig::LINEAR;
  v1::ModelConfig::Loss loss = v1::ModelConfig::LOGISTIC;  // Never AUTO.
  uint32_t outputs = 1;                                    // Classes (softmax), or 1.
  uint32_t numeric_count = 0;
  uint32_t field_count = 0;

  bool linear_rows = false;        // Table "linear" [key -> outputs].
  bool linear_numeric = false;     // Table "numeric" [numeric_count, outputs].
  bool pairs = false;              // The second-order term over table "embedding".
  uint32_t embedding_dim = 0;      // Width of table "embedding"; 0: there is none.
  std::vector<DenseLayer> mlp;     // Tables "mlp/0/weight", "mlp/0/bias", ...; empty: no such term.
  std::vector<DenseLayer> bottom;  // Tables "bottom/0/weight", ... (dlrm).

  float bias = 0;            // Where table "bias" [outputs] starts.
  std::vector<float> prior;  // [outputs]: a constant beside the bias, the classes' log shares (softmax); or empty.
  float l2 = 0;
  float dropout = 0;

  // Vectors that dlrm multiplies by one another: the fields' embeddings and the bottom mlp's output.
  size_t interaction_vectors() const { return size_t{field_count} + 1; }
  // Their number of pairs.
  size_t interaction_pairs() const { return interaction_vectors() * (interaction_vectors() - 1) / 2; }
};

// Whether the labels of the model that `config` describes are classes or numbers.
LabelKind LabelsOf(const v1::ModelConfig& config);

// INVALID_ARGUMENT, saying what to change, if the model makes no sense on such data, or is not the one that
// schema.continued (whose prior stays) is.
absl::StatusOr<ModelPlan> PlanModel(const v1::Config& config, const Schema& schema);

// The model's tables: dense ones, then embedding tables. The same for all workers.
absl::StatusOr<std::vector<v1::TableSpec>> TablesOf(const ModelPlan& plan, const v1::Config& config);

}  // namespace lodestone::worker
