#include "worker/model/model.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "kernels/flush_denormals.h"
#include "worker/model/model_description.h"

namespace lodestone::worker {
namespace {

// The bottom mlp's dropout is another one than the top's.
constexpr uint64_t kBottomStream = 0xb0;

int IndexOf(const std::vector<v1::TableSpec>& tables, const char* name) {
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables[i].name() == name) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

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
      numeric_(IndexOf(tables_, "numeric")),
      mlp_begin_(IndexOf(tables_, "mlp/0/weight")),
      bottom_begin_(IndexOf(tables_, "bottom/0/weight")),
      linear_(IndexOf(tables_, "linear")),
      embedding_(IndexOf(tables_, "embedding")),
      backend_(backend),
      prior_(backend),
      mlp_(plan_.mlp, plan_.dropout, backend),
      bottom_(plan_.bottom, plan_.dropout, backend),
      logits_(backend),
      dlogits_(backend),
      sums_(backend),
      mlp_input_(backend),
      dmlp_input_(backend),
      vectors_(backend),
      dvectors_(backend),
      dbottom_(backend) {
  LODESTONE_CHECK(IndexOf(tables_, "bias") == 0);
  while (dense_table_count_ < tables_.size() && tables_[dense_table_count_].has_dense()) ++dense_table_count_;
  prior_.Resize(plan_.prior.size());
  backend_->CopyIn(kernels::Queue::kCompute, plan_.prior.size() * sizeof(float), plan_.prior.data(), prior_.data());
}

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
  const size_t outputs = plan_.outputs;
  float* const logits = logits_.Resize(batch.size * outputs);
  if (plan_.mlp.empty()) {
    backend_->Fill(batch.size * outputs, 0.0f, logits);
  } else {
    const float* const x = MlpInput(batch, parameters, dropout_seed);
    const std::span tensors(parameters.data() + mlp_begin_, mlp_.tensor_count());
    const float* const y = mlp_.Forward(batch.size, x, tensors, dropout_seed);
    backend_->Copy(batch.size * outputs, y, logits);
  }
  backend_->AddBias(batch.size, outputs, parameters[0], logits);
  if (!plan_.prior.empty()) backend_->AddBias(batch.size, outputs, prior_.data(), logits);
  if (numeric_ >= 0) {
    backend_->MatMul(false, false, batch.size, outputs, plan_.numeric_count, 1, batch.numeric, parameters[numeric_], 1,
                     logits);
  }
  if (linear_ >= 0) backend_->SparseLinear(batch.sparse, outputs, parameters[linear_], logits);
  if (plan_.pairs) {
    sums_.Resize(batch.size * plan_.embedding_dim);
    backend_->FactorizationMachine(batch.sparse, plan_.embedding_dim, parameters[embedding_], sums_.data(), logits);
  }
}

const float* Model::MlpInput(const BatchView& batch, const ParameterPointers& parameters,
                             std::optional<uint64_t> dropout_seed) {
  const size_t dim = plan_.embedding_dim, fields = plan_.field_count, numeric = plan_.numeric_count;
  if (embedding_ < 0) return batch.numeric;
  const size_t width = plan_.mlp[0].in;
  mlp_input_.Resize(batch.size * width);
  if (plan_.bottom.empty()) {
    backend_->GatherFields(batch.sparse, fields, dim, parameters[embedding_], width, 0, mlp_input_.data());
    if (numeric > 0) {
      backend_->CopyColumns(batch.size, numeric, batch.numeric, width, fields * dim, mlp_input_.data());
    }
    return mlp_input_.data();
  }
  std::optional<uint64_t> bottom_seed;
  if (dropout_seed) bottom_seed = StreamSeed(*dropout_seed, kBottomStream);
  const float* const bottom = bottom_.Forward(
      batch.size, batch.numeric, std::span(parameters.data() + bottom_begin_, bottom_.tensor_count()), bottom_seed);
  const size_t vectors = plan_.interaction_vectors();
  vectors_.Resize(batch.size * vectors * dim);
  backend_->CopyColumns(batch.size, dim, bottom, vectors * dim, 0, vectors_.data());
  backend_->GatherFields(batch.sparse, fields, dim, parameters[embedding_], vectors * dim, dim, vectors_.data());
  backend_->CopyColumns(batch.size, dim, bottom, width, 0, mlp_input_.data());
  backend_->DotInteraction(batch.size, vectors, dim, vectors_.data(), width, dim, mlp_input_.data());
  return mlp_input_.data();
}

void Model::Backward(const BatchView& batch, const ParameterPointers& parameters, const GradientPointers& gradients) {
  const size_t outputs = plan_.outputs, dim = plan_.embedding_dim;
  backend_->ColumnSums(batch.size, outputs, dlogits_.data(), gradients[0]);
  if (numeric_ >= 0) {
    backend_->MatMul(true, false, plan_.numeric_count, outputs, batch.size, 1, batch.numeric, dlogits_.data(), 0,
                     gradients[numeric_]);
  }
  // Row gradients are sums over the samples that hold the row; l2's part comes first.
  for (int table : {linear_, embedding_}) {
    if (table < 0) continue;
    const size_t n = batch.keys * (table == linear_ ? outputs : dim);
    backend_->Fill(n, 0.0f, gradients[table]);
    if (plan_.l2 > 0) backend_->Axpy(n, plan_.l2, parameters[table], gradients[table]);
  }
  if (linear_ >= 0) backend_->SparseLinearBackward(batch.sparse, outputs, dlogits_.data(), gradients[linear_]);
  if (plan_.pairs) {
    backend_->FactorizationMachineBackward(batch.sparse, dim, parameters[embedding_], sums_.data(), dlogits_.data(),
                                           gradients[embedding_]);
  }
  if (!plan_.mlp.empty()) MlpBackward(batch, parameters, gradients);
}

void Model::MlpBackward(const BatchView& batch, const ParameterPointers& parameters,
                        const GradientPointers& gradients) {
  const std::span tensors(parameters.data() + mlp_begin_, mlp_.tensor_count());
  const std::span dtensors(gradients.data() + mlp_begin_, mlp_.tensor_count());
  if (embedding_ < 0) {
    mlp_.Backward(batch.size, batch.numeric, tensors, dlogits_.data(), dtensors, nullptr);
    return;
  }
  const size_t width = plan_.mlp[0].in, dim = plan_.embedding_dim, fields = plan_.field_count;
  dmlp_input_.Resize(mlp_input_.size());
  mlp_.Backward(batch.size, mlp_input_.data(), tensors, dlogits_.data(), dtensors, dmlp_input_.data());
  if (plan_.bottom.empty()) {
    backend_->ScatterFields(batch.sparse, fields, dim, dmlp_input_.data(), width, 0, gradients[embedding_]);
    return;
  }
  const size_t vectors = plan_.interaction_vectors();
  dvectors_.Resize(vectors_.size());
  backend_->Fill(dvectors_.size(), 0.0f, dvectors_.data());
  backend_->DotInteractionBackward(batch.size, vectors, dim, vectors_.data(), width, dim, dmlp_input_.data(),
                                   dvectors_.data());
  backend_->ScatterFields(batch.sparse, fields, dim, dvectors_.data(), vectors * dim, dim, gradients[embedding_]);
  // The bottom's output goes into the mlp by itself and through the products.
  const size_t n = batch.size * dim;
  dbottom_.Resize(2 * n);
  backend_->ExtractColumns(batch.size, dim, dmlp_input_.data(), width, 0, dbottom_.data());
  backend_->ExtractColumns(batch.size, dim, dvectors_.data(), vectors * dim, 0, dbottom_.data() + n);
  backend_->Axpy(n, 1, dbottom_.data() + n, dbottom_.data());
  bottom_.Backward(batch.size, batch.numeric, std::span(parameters.data() + bottom_begin_, bottom_.tensor_count()),
                   dbottom_.data(), std::span(gradients.data() + bottom_begin_, bottom_.tensor_count()), nullptr);
}

}  // namespace lodestone::worker
