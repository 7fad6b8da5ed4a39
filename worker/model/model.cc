#include "worker/model/model.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/flush_denormals.h"
#include "worker/model/model_description.h"
#include "worker/model/pooled_fields.h"

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
      sample_penalties_(backend),
      row_penalties_(backend),
      ones_(backend),
      penalties_(backend) {
  LODESTONE_CHECK(tables_[0].name() == kDescribedTable);
  for (const TermMaker& make : plan_.terms) terms_.push_back(make(plan_, backend_));
  if (!plan_.pooling.empty()) pooled_ = std::make_unique<PooledFields>(plan_, backend_);
}

Model::~Model() = default;

EvaluationMetrics::Kind Model::metrics_kind() const {
  switch (plan_.loss) {
    case v1::ModelConfig::SQUARED:
      return EvaluationMetrics::Kind::kRegression;
    case v1::ModelConfig::SOFTMAX:
      return EvaluationMetrics::Kind::kMulticlass;
    default:
      return EvaluationMetrics::Kind::kBinary;
  }
}

void Model::Gradients(const BatchView& batch, const ParameterPointers& parameters, uint64_t dropout_seed,
                      const GradientPointers& gradients, float* predictions, double* loss) {
  LODESTONE_CHECK(batch.size > 0 && parameters.size() == tables_.size() && gradients.size() == tables_.size());
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
  switch (plan_.loss) {
    case v1::ModelConfig::SQUARED:
      return backend_->SquaredLoss(batch.size, logits_.data(), batch.labels, dlogits, predictions, loss);
    case v1::ModelConfig::SOFTMAX:
      return backend_->SoftmaxLoss(batch.size, plan_.outputs, logits_.data(), batch.labels, dlogits, predictions, loss);
    default:
      return backend_->LogisticLoss(batch.size, logits_.data(), batch.labels, dlogits, predictions, loss);
  }
}

void Model::Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t> dropout_seed) {
  const size_t n = batch.size * plan_.outputs;
  backend_->Fill(n, 0.0f, logits_.Resize(n));
  if (pooled_ != nullptr) pooled_->Forward(batch, parameters);
  const BatchView& view = pooled_ != nullptr ? pooled_->view() : batch;
  const ParameterPointers& used = pooled_ != nullptr ? pooled_->parameters() : parameters;
  for (const auto& term : terms_) term->Forward(view, used, dropout_seed, logits_.data());
}

void Model::Backward(const BatchView& batch, const ParameterPointers& parameters, const GradientPointers& gradients) {
  StartRowGradients(batch, parameters, gradients);
  if (pooled_ == nullptr) return BackwardTerms(batch, parameters, gradients);
  BackwardTerms(pooled_->view(), pooled_->parameters(), pooled_->StartBackward(gradients));
  pooled_->Backward(batch, parameters, gradients);
}

void Model::BackwardTerms(const BatchView& batch, const ParameterPointers& parameters,
                          const GradientPointers& gradients) {
  for (auto term = terms_.rbegin(); term != terms_.rend(); ++term) {
    (*term)->Backward(batch, parameters, dlogits_.data(), gradients);
  }
}

void Model::StartRowGradients(const BatchView& batch, const ParameterPointers& parameters,
                              const GradientPointers& gradients) {
  const bool per_sample = plan_.l2 > 0 && plan_.l2_per == v1::ModelConfig::SAMPLE;
  if (per_sample) CountRows(batch);
  // Row gradients are sums over the samples that hold the row; l2's part comes first.
  for (size_t t = dense_table_count(); t < tables_.size(); ++t) {
    const size_t dim = plan_.row_tables[t - dense_table_count()].dim, n = batch.keys * dim;
    backend_->Fill(n, 0.0f, gradients[t]);
    if (per_sample) {
      backend_->Fill(dim, 1.0f, ones_.Resize(dim));
      backend_->MatMul(false, false, batch.keys, dim, 1, 1, row_penalties_.data(), ones_.data(), 0,
                       penalties_.Resize(n));
      backend_->MultiplyAdd(n, penalties_.data(), parameters[t], gradients[t]);
    } else if (plan_.l2 > 0) {
      backend_->Axpy(n, plan_.l2, parameters[t], gradients[t]);
    }
  }
}

void Model::CountRows(const BatchView& batch) {
  const size_t n = batch.sparse.samples;
  backend_->Fill(n, plan_.l2 / static_cast<float>(batch.size), sample_penalties_.Resize(n));
  backend_->Fill(batch.keys, 0.0f, row_penalties_.Resize(batch.keys));
  kernels::SparseBatch counted = batch.sparse;
  counted.value = nullptr;  // A feature counts once, whatever its value.
  backend_->SparseLinearBackward(counted, 1, sample_penalties_.data(), row_penalties_.data());
}

}  // namespace lodestone::worker
