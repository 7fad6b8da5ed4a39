#include "worker/model/model.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/flush_denormals.h"
#include "worker/model/label_losses.h"
#include "worker/model/model_description.h"
#include "worker/model/model_tables.h"
#include "worker/model/pooled_fields.h"
#include "worker/model/two_towers.h"

namespace lodestone::worker {

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const v1::Config& config, const Schema& schema,
                                                     kernels::Backend* backend) {
  LODESTONE_ASSIGN_OR_RETURN(ModelPlan plan, PlanModel(config, schema));
  LODESTONE_ASSIGN_OR_RETURN(std::vector<v1::TableSpec> tables, TablesOf(plan, config));
  *tables[0].mutable_model() =
      schema.continued != nullptr ? *schema.continued : DescribeModel(plan, config.model(), schema, tables);
  return std::unique_ptr<Model>(new Model(std::move(plan), std::move(tables), backend));
}

Model::Model(ModelPlan plan, std::vector<v1::TableSpec> tables, kernels::Backend* backend)
    : plan_(std::move(plan)),
      tables_(std::move(tables)),
      backend_(backend),
      logits_(backend),
      dlogits_(backend),
      scaled_(backend),
      sample_penalties_(backend),
      row_penalties_(backend),
      ones_(backend),
      penalties_(backend) {
  LODESTONE_CHECK(tables_[0].name() == kDescribedTable);
  for (const TermMaker& make : plan_.terms) terms_.push_back(make(plan_, backend_));
  if (plan_.two_tower.has_value()) towers_ = std::make_unique<TwoTowers>(plan_, backend_);
  if (plan_.multitask.has_value()) label_losses_ = std::make_unique<LabelLosses>(plan_, backend_);
  if (!plan_.pooling.empty()) pooled_ = std::make_unique<PooledFields>(plan_, backend_);
}

Model::~Model() = default;

EvaluationMetrics::Kind Model::metrics_kind() const {
  switch (plan_.loss) {
    case v1::ModelConfig::SQUARED:
      return EvaluationMetrics::Kind::kRegression;
    case v1::ModelConfig::SOFTMAX:
      return EvaluationMetrics::Kind::kMulticlass;
    case v1::ModelConfig::IN_BATCH_SOFTMAX:
      return EvaluationMetrics::Kind::kRetrieval;
    default:
      return EvaluationMetrics::Kind::kBinary;
  }
}

EvaluationMetrics Model::NewMetrics() const {
  return EvaluationMetrics(metrics_kind(),
                           plan_.multitask.has_value() ? plan_.multitask->labels : std::vector<std::string>());
}

void Model::Gradients(const BatchView& batch, const ParameterPointers& parameters, uint64_t dropout_seed,
                      const GradientPointers& gradients, float* predictions, double* loss) {
  LODESTONE_CHECK(batch.size > 0 && parameters.size() == tables_.size() && gradients.size() == tables_.size());
  LODESTONE_CHECK(towers_ == nullptr || batch.candidates != nullptr);
  const kernels::FlushDenormals flush;
  Forward(batch, parameters, dropout_seed);
  dlogits_.Resize(logits_.size());
  Loss(batch, dlogits_.data(), predictions, loss);
  Backward(batch, parameters, gradients);
}

void Model::Predict(const BatchView& batch, const ParameterPointers& parameters, float* predictions, double* loss) {
  LODESTONE_CHECK(batch.size > 0 && parameters.size() == tables_.size());
  const kernels::FlushDenormals flush;
  Forward(batch, parameters, std::nullopt);
  Loss(batch, nullptr, predictions, loss);
}

double Model::Gradients(const KeyedBatch& batch, const ParameterPointers& parameters, uint64_t dropout_seed,
                        const GradientPointers& gradients, float* predictions) {
  LODESTONE_CHECK(backend_->on_host());
  double loss = 0;
  Gradients(batch.view(), parameters, dropout_seed, gradients, predictions, &loss);
  return loss;
}

double Model::Predict(const KeyedBatch& batch, const ParameterPointers& parameters, float* predictions) {
  LODESTONE_CHECK(backend_->on_host());
  double loss = 0;
  Predict(batch.view(), parameters, predictions, &loss);
  return loss;
}

void Model::Loss(const BatchView& batch, float* dlogits, float* predictions, double* loss) {
  if (label_losses_ != nullptr) return label_losses_->Compute(batch, logits_.data(), dlogits, predictions, loss);
  switch (plan_.loss) {
    case v1::ModelConfig::IN_BATCH_SOFTMAX:
      return InBatchLoss(batch, dlogits != nullptr, dlogits, predictions, loss);
    case v1::ModelConfig::SQUARED:
      if (plan_.label_deviation > 0) return ScaledLoss(batch, dlogits, predictions, loss);
      return backend_->SquaredLoss(batch.size, logits_.data(), batch.labels, batch.weights, dlogits, predictions, loss);
    case v1::ModelConfig::SOFTMAX:
      return backend_->SoftmaxLoss(batch.size, plan_.outputs, logits_.data(), batch.labels, batch.weights, dlogits,
                                   predictions, loss);
    default:
      return backend_->LogisticLoss(batch.size, logits_.data(), batch.labels, batch.weights, dlogits, predictions,
                                    loss);
  }
}

void Model::InBatchLoss(const BatchView& batch, bool trains, float* dlogits, float* predictions, double* loss) {
  const size_t n = batch.size;
  if (batch.candidates == nullptr) {
    backend_->SquaredLoss(0, nullptr, nullptr, nullptr, nullptr, nullptr, loss);  // 0.
  } else {
    backend_->AddBias(n, n, batch.candidates + (trains ? 0 : n), logits_.data());
    backend_->SoftmaxLoss(n, n, logits_.data(), batch.labels, batch.weights, dlogits, trains ? predictions : nullptr,
                          loss);
  }
  if (!trains && predictions != nullptr) towers_->OwnScores(n, predictions);
}

void Model::ScaledLoss(const BatchView& batch, float* dlogits, float* predictions, double* loss) {
  const size_t n = batch.size;
  const double mean = plan_.label_mean, deviation = plan_.label_deviation;
  backend_->Fill(n, static_cast<float>(-mean / deviation), scaled_.Resize(n));
  backend_->Axpy(n, static_cast<float>(1 / deviation), batch.labels, scaled_.data());
  backend_->SquaredLoss(n, logits_.data(), scaled_.data(), batch.weights, dlogits, nullptr, loss);
  if (predictions == nullptr) return;
  backend_->Fill(n, static_cast<float>(mean), predictions);
  backend_->Axpy(n, static_cast<float>(deviation), logits_.data(), predictions);
}

void Model::Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t> dropout_seed) {
  if (towers_ == nullptr) {
    const size_t n = batch.size * plan_.outputs;
    backend_->Fill(n, 0.0f, logits_.Resize(n));
  }
  if (pooled_ != nullptr) pooled_->Forward(batch, parameters);
  const BatchView& view = pooled_ != nullptr ? pooled_->view() : batch;
  const ParameterPointers& used = pooled_ != nullptr ? pooled_->parameters() : parameters;
  for (const auto& term : terms_) term->Forward(view, used, dropout_seed, logits_.data());
  if (towers_ == nullptr) return;
  towers_->Forward(view, used, dropout_seed);
  if (batch.candidates != nullptr) towers_->AllScores(batch.size, logits_.Resize(batch.size * batch.size));
}

void Model::Backward(const BatchView& batch, const ParameterPointers& parameters, const GradientPointers& gradients) {
  StartRowGradients(batch, parameters, gradients);
  if (pooled_ == nullptr) return BackwardTerms(batch, parameters, gradients);
  BackwardTerms(pooled_->view(), pooled_->parameters(), pooled_->StartBackward(gradients));
  pooled_->Backward(batch, parameters, gradients);
}

void Model::BackwardTerms(const BatchView& batch, const ParameterPointers& parameters,
                          const GradientPointers& gradients) {
  if (towers_ != nullptr) towers_->Backward(batch, parameters, dlogits_.data(), gradients);
  for (auto term = terms_.rbegin(); term != terms_.rend(); ++term) {
    (*term)->Backward(batch, parameters, dlogits_.data(), gradients);
  }
}

void Model::StartRowGradients(const BatchView& batch, const ParameterPointers& parameters,
                              const GradientPointers& gradients) {
  const bool per_sample = plan_.l2 > 0 && plan_.l2_per == v1::ModelConfig::SAMPLE;
  // Row gradients are sums over the samples that hold the row; l2's part comes first.
  for (size_t g = 0; g < batch.groups.size(); ++g) {
    const size_t keys = batch.groups[g].keys;
    if (per_sample) CountRows(batch.groups[g], batch.size);
    for (size_t t = dense_table_count(); t < tables_.size(); ++t) {
      if (plan_.groups.OfTable(t - dense_table_count()) != g) continue;
      const size_t dim = plan_.row_tables[t - dense_table_count()].dim, n = keys * dim;
      backend_->Fill(n, 0.0f, gradients[t]);
      if (per_sample) {
        backend_->Fill(dim, 1.0f, ones_.Resize(dim));
        backend_->MatMul(false, false, keys, dim, 1, 1, row_penalties_.data(), ones_.data(), 0, penalties_.Resize(n));
        backend_->MultiplyAdd(n, penalties_.data(), parameters[t], gradients[t]);
      } else if (plan_.l2 > 0) {
        backend_->Axpy(n, plan_.l2, parameters[t], gradients[t]);
      }
    }
  }
}

void Model::CountRows(const BatchView::Group& group, size_t samples) {
  const size_t n = group.sparse.samples;
  backend_->Fill(n, plan_.l2 / static_cast<float>(samples), sample_penalties_.Resize(n));
  backend_->Fill(group.keys, 0.0f, row_penalties_.Resize(group.keys));
  kernels::SparseBatch counted = group.sparse;
  counted.value = nullptr;  // A feature counts once, whatever its value.
  backend_->SparseLinearBackward(counted, 1, sample_penalties_.data(), {row_penalties_.data(), 1});
}

}  // namespace lodestone::worker
