// The arithmetic of a model on one batch: predictions, loss and gradients, from parameters that lie somewhere else.
//
//   logits = the sum of the model's terms (term.h), which its type chose (model_plan.h), of pooled rows where fields
//   have several keys (pooled_fields.h),
// and the loss makes predictions of them.
//
// Not thread-safe: it keeps scratch memory. The same batch, parameters and seed give the same bits on the CPU with one
// thread, and on a device if the batch has an order (kernels/sparse_batch.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu_backend.h"
#include "kernels/scratch_array.h"
#include "proto/config.pb.h"
#include "proto/table.pb.h"
#include "worker/data/dataset.h"
#include "worker/metrics/evaluation_metrics.h"
#include "worker/model/keyed_batch.h"
#include "worker/model/model_plan.h"
#include "worker/model/term.h"

namespace lodestone::worker {

class LabelLosses;
class PooledFields;
class TwoTowers;

class Model {
 public:
  ~Model();
  // INVALID_ARGUMENT, saying what to change, if the model makes no sense on such data.
  // The arithmetic runs on `backend`, which must outlive the model.
  static absl::StatusOr<std::unique_ptr<Model>> Create(const v1::Config& config, const Schema& schema,
                                                       kernels::Backend* backend = kernels::Cpu());

  // Dense tables, then embedding tables. The first one has the model's description: that of schema.continued, if this
  // is one, and else a new one.
  const std::vector<v1::TableSpec>& tables() const { return tables_; }
  size_t dense_table_count() const { return plan_.dense_tables.size(); }
  const ModelPlan& plan() const { return plan_; }
  kernels::Backend* backend() const { return backend_; }
  EvaluationMetrics::Kind metrics_kind() const;
  // None so far, of what the model predicts.
  EvaluationMetrics NewMetrics() const;

  // Queues the computation of the sum of the samples' losses and of the gradients of their mean and the penalty on rows
  // (model.l2, model.l2_per).
  // On the CPU denormal numbers count as zero, in Predict too.
  // Dropout, if configured, is a function of `dropout_seed`. Predictions are as Predict's, but with that dropout; none
  // if null. REQUIRES: the batch has a sample and fits the schema.
  void Gradients(const BatchView& batch, const ParameterPointers& parameters, uint64_t dropout_seed,
                 const GradientPointers& gradients, float* predictions, double* loss);
  // Queues the computation of the sum of the samples' losses and of batch.size predictions: probability of class 1
  // (logistic), class index (softmax), number (squared), or score (in_batch_softmax, whose loss is that of the batch's
  // candidates without a correction, and 0 of a batch without them; Gradients predicts candidates' indices). Of several
  // labels predictions are the first one's, `logits` has the others'; the loss is 0 of a batch without label_weights.
  void Predict(const BatchView& batch, const ParameterPointers& parameters, float* predictions, double* loss);

  // Of the last Predict, until the next call: each sample's outputs before the loss makes predictions of them,
  // [samples, OutputsOf(samples)], in the backend's memory.
  const float* logits() const { return logits_.data(); }
  // Of each of so many samples: in_batch_softmax has one for each candidate of the batch.
  size_t OutputsOf(size_t samples) const { return plan_.two_tower.has_value() ? samples : plan_.outputs; }
  // The towers of type twotower, whose vectors are those of the last Predict; else null.
  const TwoTowers* towers() const { return towers_.get(); }

  // The same at once, returning the loss. REQUIRES: the backend works on the host's memory.
  double Gradients(const KeyedBatch& batch, const ParameterPointers& parameters, uint64_t dropout_seed,
                   const GradientPointers& gradients, float* predictions = nullptr);

  double Predict(const KeyedBatch& batch, const ParameterPointers& parameters, float* predictions);

 private:
  Model(ModelPlan plan, std::vector<v1::TableSpec> tables, kernels::Backend* backend);

  // Fills logits_.
  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t> dropout_seed);
  // From dlogits_ to all gradients.
  void Backward(const BatchView& batch, const ParameterPointers& parameters, const GradientPointers& gradients);
  void BackwardTerms(const BatchView& batch, const ParameterPointers& parameters, const GradientPointers& gradients);
  // Begins the gradients of row tables with those of the penalty.
  void StartRowGradients(const BatchView& batch, const ParameterPointers& parameters,
                         const GradientPointers& gradients);
  // For each row of a batch's group l2 times the share of samples that have it, counting features: row_penalties_.
  void CountRows(const BatchView::Group& group, size_t samples);
  // Writes what is not null. Trains: as Gradients has it.
  void InBatchLoss(const BatchView& batch, bool trains, float* dlogits, float* predictions, double* loss);
  void ScaledLoss(const BatchView& batch, float* dlogits, float* predictions, double* loss);
  // Writes what is not null.
  void Loss(const BatchView& batch, float* dlogits, float* predictions, double* loss);

  // Constant after construction.
  const ModelPlan plan_;
  const std::vector<v1::TableSpec> tables_;
  kernels::Backend* const backend_;

  std::vector<std::unique_ptr<Term>> terms_;
  std::unique_ptr<PooledFields> pooled_;       // Null if each field has one key.
  std::unique_ptr<TwoTowers> towers_;          // Null unless plan_.two_tower.
  std::unique_ptr<LabelLosses> label_losses_;  // Null unless plan_.multitask.
  kernels::ScratchArray<float> logits_;        // [samples, outputs]
  kernels::ScratchArray<float> dlogits_;       // [samples, outputs]
  kernels::ScratchArray<float> scaled_;        // [samples]: labels, where they are scaled.
  // Where l2 counts samples.
  kernels::ScratchArray<float> sample_penalties_;  // [samples], or of each field
  kernels::ScratchArray<float> row_penalties_;     // [keys]
  kernels::ScratchArray<float> ones_;              // [dim]
  kernels::ScratchArray<float> penalties_;         // [keys, dim]
};

}  // namespace lodestone::worker
