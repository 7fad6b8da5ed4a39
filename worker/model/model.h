// The arithmetic of a model on one batch: predictions, loss and gradients, from parameters that lie somewhere else.
//
// All six types are sums of the same four terms (model_plan.h), so there is one class for them:
//   logits = bias + linear(sparse rows, numeric) + factorization machine(sparse rows) + mlp(x)
// where x is the numeric features (mlp), the fields' embeddings beside the numeric features (deepfm), or the bottom
// mlp's output beside its and the embeddings' pairwise dot products (dlrm).
//
// Not thread-safe: it keeps scratch memory. The same batch, parameters and seed give the same bits with one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "proto/table.pb.h"
#include "worker/aligned_vector.h"
#include "worker/data/dataset.h"
#include "worker/metrics.h"
#include "worker/model/keyed_batch.h"
#include "worker/model/mlp.h"
#include "worker/model/model_plan.h"

namespace lodestone {

// One pointer per table of Model::tables(), in their order: a dense table's elements; of an embedding table the rows of
// the batch's distinct keys, [keys, dim].
using ParameterPointers = std::vector<const float*>;
using GradientPointers = std::vector<float*>;

class Model {
 public:
  // INVALID_ARGUMENT, saying what to change, if the model makes no sense on such data.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::Config& config, const Schema& schema);

  // Dense tables, then embedding tables.
  const std::vector<v1::TableSpec>& tables() const { return tables_; }
  size_t dense_table_count() const { return dense_table_count_; }
  const ModelPlan& plan() const { return plan_; }
  Metrics::Kind metrics_kind() const;

  // Returns the sum of the samples' losses and writes the gradients of (mean loss + l2 / 2 * |rows|^2). Dropout, if
  // configured, is a function of `dropout_seed`. Writes predictions as Predict does, but with that dropout, unless they
  // are null. REQUIRES: the batch has a sample and fits the schema.
  double Gradients(const KeyedBatch& batch, const ParameterPointers& parameters, uint64_t dropout_seed,
                   const GradientPointers& gradients, float* predictions = nullptr);

  // Returns the sum of the samples' losses and writes batch.size predictions: probability of class 1 (logistic), class
  // index (softmax), or number (squared).
  double Predict(const KeyedBatch& batch, const ParameterPointers& parameters, float* predictions);

 private:
  Model(ModelPlan plan, std::vector<v1::TableSpec> tables);

  // Fills logits_.
  void Forward(const KeyedBatch& batch, const ParameterPointers& parameters, std::optional<uint64_t> dropout_seed);
  // The mlp's input, [samples, mlp in], in the batch itself or in mlp_input_.
  const float* MlpInput(const KeyedBatch& batch, const ParameterPointers& parameters,
                        std::optional<uint64_t> dropout_seed);
  // From dlogits_ to all gradients.
  void Backward(const KeyedBatch& batch, const ParameterPointers& parameters, const GradientPointers& gradients);
  void MlpBackward(const KeyedBatch& batch, const ParameterPointers& parameters, const GradientPointers& gradients);
  // Writes what is not null.
  double Loss(const Batch& batch, float* dlogits, float* predictions) const;

  // Constant after construction. Indices are into tables_; -1: the model has no such table.
  const ModelPlan plan_;
  const std::vector<v1::TableSpec> tables_;
  size_t dense_table_count_ = 0;
  int numeric_ = -1;
  int mlp_begin_ = -1;
  int bottom_begin_ = -1;
  int linear_ = -1;
  int embedding_ = -1;

  // Scratch of the last batch.
  Mlp mlp_;
  Mlp bottom_;
  AlignedFloats logits_;      // [samples, outputs]
  AlignedFloats dlogits_;     // [samples, outputs]
  AlignedFloats sums_;        // [samples, embedding_dim]: the second-order term's
  AlignedFloats mlp_input_;   // [samples, mlp in]
  AlignedFloats dmlp_input_;  // [samples, mlp in]
  AlignedFloats vectors_;     // [samples, 1 + fields, embedding_dim]: bottom output, embeddings (dlrm)
  AlignedFloats dvectors_;    // [samples, 1 + fields, embedding_dim]
  AlignedFloats dbottom_;     // [samples, embedding_dim]
};

}  // namespace lodestone
