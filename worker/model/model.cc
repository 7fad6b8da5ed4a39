#include "worker/model/model.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/random.h"
#include "common/status.h"
#include "kernels/activation.h"
#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "kernels/matmul.h"

namespace lodestone {
namespace cpu = kernels::cpu;
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

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const v1::Config& config, const Schema& schema) {
  LODESTONE_ASSIGN_OR_RETURN(ModelPlan plan, PlanModel(config, schema));
  LODESTONE_ASSIGN_OR_RETURN(std::vector<v1::TableSpec> tables, TablesOf(plan, config));
  return std::unique_ptr<Model>(new Model(std::move(plan), std::move(tables)));
}

Model::Model(ModelPlan plan, std::vector<v1::TableSpec> tables)
    : plan_(std::move(plan)),
      tables_(std::move(tables)),
      numeric_(IndexOf(tables_, "numeric")),
      mlp_begin_(IndexOf(tables_, "mlp/0/weight")),
      bottom_begin_(IndexOf(tables_, "bottom/0/weight")),
      linear_(IndexOf(tables_, "linear")),
      embedding_(IndexOf(tables_, "embedding")),
      mlp_(plan_.mlp, plan_.dropout),
      bottom_(plan_.bottom, plan_.dropout) {
  LODESTONE_CHECK(IndexOf(tables_, "bias") == 0);
  while (dense_table_count_ < tables_.size() && tables_[dense_table_count_].has_dense()) ++dense_table_count_;
}

Metrics::Kind Model::metrics_kind() const {
  switch (plan_.loss) {
    case v1::ModelConfig::SQUARED:
      return Metrics::Kind::kRegression;
    case v1::ModelConfig::SOFTMAX:
      return Metrics::Kind::kMulticlass;
    default:
      return Metrics::Kind::kBinary;
  }
}

double Model::Gradients(const KeyedBatch& batch, const ParameterPointers& parameters, uint64_t dropout_seed,
                        const GradientPointers& gradients, float* predictions) {
  LODESTONE_CHECK(batch.batch.size > 0 && parameters.size() == tables_.size() && gradients.size() == tables_.size());
  Forward(batch, parameters, dropout_seed);
  dlogits_.resize(logits_.size());
  const double loss = Loss(batch.batch, dlogits_.data(), predictions);
  Backward(batch, parameters, gradients);
  return loss;
}

double Model::Predict(const KeyedBatch& batch, const ParameterPointers& parameters, float* predictions) {
  LODESTONE_CHECK(batch.batch.size > 0 && parameters.size() == tables_.size());
  Forward(batch, parameters, std::nullopt);
  return Loss(batch.batch, nullptr, predictions);
}

double Model::Loss(const Batch& batch, float* dlogits, float* predictions) const {
  const float* const labels = batch.labels.data();
  switch (plan_.loss) {
    case v1::ModelConfig::SQUARED:
      return cpu::SquaredLoss(batch.size, logits_.data(), labels, dlogits, predictions);
    case v1::ModelConfig::SOFTMAX:
      return cpu::SoftmaxLoss(batch.size, plan_.outputs, logits_.data(), labels, dlogits, predictions);
    default:
      return cpu::LogisticLoss(batch.size, logits_.data(), labels, dlogits, predictions);
  }
}

void Model::Forward(const KeyedBatch& keyed, const ParameterPointers& parameters,
                    std::optional<uint64_t> dropout_seed) {
  const Batch& batch = keyed.batch;
  const size_t outputs = plan_.outputs;
  if (plan_.mlp.empty()) {
    logits_.assign(batch.size * outputs, 0.0f);
  } else {
    const float* const x = MlpInput(keyed, parameters, dropout_seed);
    const std::span tensors(parameters.data() + mlp_begin_, mlp_.tensor_count());
    const float* const y = mlp_.Forward(batch.size, x, tensors, dropout_seed);
    logits_.assign(y, y + batch.size * outputs);
  }
  cpu::AddBias(batch.size, outputs, parameters[0], logits_.data());
  if (!plan_.prior.empty()) cpu::AddBias(batch.size, outputs, plan_.prior.data(), logits_.data());
  if (numeric_ >= 0) {
    cpu::MatMul(false, false, batch.size, outputs, plan_.numeric_count, 1, batch.numeric.data(), parameters[numeric_],
                1, logits_.data());
  }
  if (linear_ >= 0) cpu::SparseLinear(keyed.sparse(), outputs, parameters[linear_], logits_.data());
  if (plan_.pairs) {
    sums_.resize(batch.size * plan_.embedding_dim);
    cpu::FactorizationMachine(keyed.sparse(), plan_.embedding_dim, parameters[embedding_], sums_.data(),
                              logits_.data());
  }
}

const float* Model::MlpInput(const KeyedBatch& keyed, const ParameterPointers& parameters,
                             std::optional<uint64_t> dropout_seed) {
  const Batch& batch = keyed.batch;
  const size_t dim = plan_.embedding_dim, fields = plan_.field_count, numeric = plan_.numeric_count;
  if (embedding_ < 0) return batch.numeric.data();
  const size_t width = plan_.mlp[0].in;
  mlp_input_.resize(batch.size * width);
  if (plan_.bottom.empty()) {
    cpu::GatherFields(keyed.sparse(), fields, dim, parameters[embedding_], width, 0, mlp_input_.data());
    if (numeric > 0) {
      cpu::CopyColumns(batch.size, numeric, batch.numeric.data(), width, fields * dim, mlp_input_.data());
    }
    return mlp_input_.data();
  }
  std::optional<uint64_t> bottom_seed;
  if (dropout_seed) bottom_seed = StreamSeed(*dropout_seed, kBottomStream);
  const float* const bottom =
      bottom_.Forward(batch.size, batch.numeric.data(),
                      std::span(parameters.data() + bottom_begin_, bottom_.tensor_count()), bottom_seed);
  const size_t vectors = plan_.interaction_vectors();
  vectors_.resize(batch.size * vectors * dim);
  cpu::CopyColumns(batch.size, dim, bottom, vectors * dim, 0, vectors_.data());
  cpu::GatherFields(keyed.sparse(), fields, dim, parameters[embedding_], vectors * dim, dim, vectors_.data());
  cpu::CopyColumns(batch.size, dim, bottom, width, 0, mlp_input_.data());
  cpu::DotInteraction(batch.size, vectors, dim, vectors_.data(), width, dim, mlp_input_.data());
  return mlp_input_.data();
}

void Model::Backward(const KeyedBatch& keyed, const ParameterPointers& parameters, const GradientPointers& gradients) {
  const Batch& batch = keyed.batch;
  const size_t outputs = plan_.outputs, dim = plan_.embedding_dim;
  cpu::ColumnSums(batch.size, outputs, dlogits_.data(), gradients[0]);
  if (numeric_ >= 0) {
    cpu::MatMul(true, false, plan_.numeric_count, outputs, batch.size, 1, batch.numeric.data(), dlogits_.data(), 0,
                gradients[numeric_]);
  }
  // Row gradients are sums over the samples that hold the row; l2's part comes first.
  for (int table : {linear_, embedding_}) {
    if (table < 0) continue;
    const size_t n = keyed.keys.size() * (table == linear_ ? outputs : dim);
    std::fill_n(gradients[table], n, 0.0f);
    if (plan_.l2 > 0) cpu::Axpy(n, plan_.l2, parameters[table], gradients[table]);
  }
  if (linear_ >= 0) cpu::SparseLinearBackward(keyed.sparse(), outputs, dlogits_.data(), gradients[linear_]);
  if (plan_.pairs) {
    cpu::FactorizationMachineBackward(keyed.sparse(), dim, parameters[embedding_], sums_.data(), dlogits_.data(),
                                      gradients[embedding_]);
  }
  if (!plan_.mlp.empty()) MlpBackward(keyed, parameters, gradients);
}

void Model::MlpBackward(const KeyedBatch& keyed, const ParameterPointers& parameters,
                        const GradientPointers& gradients) {
  const Batch& batch = keyed.batch;
  const std::span tensors(parameters.data() + mlp_begin_, mlp_.tensor_count());
  const std::span dtensors(gradients.data() + mlp_begin_, mlp_.tensor_count());
  if (embedding_ < 0) {
    mlp_.Backward(batch.size, batch.numeric.data(), tensors, dlogits_.data(), dtensors, nullptr);
    return;
  }
  const size_t width = plan_.mlp[0].in, dim = plan_.embedding_dim, fields = plan_.field_count;
  dmlp_input_.resize(mlp_input_.size());
  mlp_.Backward(batch.size, mlp_input_.data(), tensors, dlogits_.data(), dtensors, dmlp_input_.data());
  if (plan_.bottom.empty()) {
    cpu::ScatterFields(keyed.sparse(), fields, dim, dmlp_input_.data(), width, 0, gradients[embedding_]);
    return;
  }
  const size_t vectors = plan_.interaction_vectors();
  dvectors_.assign(vectors_.size(), 0.0f);
  cpu::DotInteractionBackward(batch.size, vectors, dim, vectors_.data(), width, dim, dmlp_input_.data(),
                              dvectors_.data());
  cpu::ScatterFields(keyed.sparse(), fields, dim, dvectors_.data(), vectors * dim, dim, gradients[embedding_]);
  // The bottom's output goes into the mlp by itself and through the products.
  const size_t n = batch.size * dim;
  dbottom_.resize(2 * n);
  cpu::ExtractColumns(batch.size, dim, dmlp_input_.data(), width, 0, dbottom_.data());
  cpu::ExtractColumns(batch.size, dim, dvectors_.data(), vectors * dim, 0, dbottom_.data() + n);
  cpu::Axpy(n, 1, dbottom_.data() + n, dbottom_.data());
  bottom_.Backward(batch.size, batch.numeric.data(),
                   std::span(parameters.data() + bottom_begin_, bottom_.tensor_count()), dbottom_.data(),
                   std::span(gradients.data() + bottom_begin_, bottom_.tensor_count()), nullptr);
}

}  // namespace lodestone
