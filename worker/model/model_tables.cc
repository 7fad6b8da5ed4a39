#include "worker/model/model_tables.h"

#include <algorithm>
#include <cmath>

#include "worker/model/step_order.h"

namespace lodestone::worker {
namespace {

using v1::ModelConfig;

// Of the default optimizer, Adagrad.
constexpr float kLearningRate = 0.05f;
// Of the default broadcast of dense tables; by count it comes after about one step of every worker.
constexpr uint32_t kBroadcastEveryMs = 100;

const v1::TableConfig& GroupOf(const ModelConfig& model, PlannedTable::Group group) {
  switch (group) {
    case PlannedTable::Group::kLinear:
      return model.linear();
    case PlannedTable::Group::kEmbedding:
      return model.embedding();
    case PlannedTable::Group::kDense:
      break;
  }
  return model.dense();
}

// The optimizer of a group of tables, before its rate is scaled.
v1::Optimizer ConfiguredOptimizer(const ModelConfig& model, const v1::TableConfig& group) {
  if (group.has_optimizer()) return group.optimizer();
  if (model.has_optimizer()) return model.optimizer();
  v1::Optimizer optimizer;
  optimizer.mutable_adagrad();
  optimizer.set_learning_rate(kLearningRate);
  return optimizer;
}

v1::Optimizer OptimizerOf(const v1::Config& config, const v1::TableConfig& group) {
  v1::Optimizer optimizer = ConfiguredOptimizer(config.model(), group);
  const auto workers = static_cast<float>(std::max<uint32_t>(1, config.cluster().workers()));
  switch (config.train().scale_rate()) {
    case v1::TrainConfig::NONE:
      break;
    case v1::TrainConfig::SQRT:
      optimizer.set_learning_rate(optimizer.learning_rate() / std::sqrt(workers));
      break;
    case v1::TrainConfig::LINEAR:
      optimizer.set_learning_rate(optimizer.learning_rate() / workers);
      break;
  }
  return optimizer;
}

v1::TableSpec SpecOf(const PlannedTable& table, const v1::Config& config) {
  const v1::TableConfig& group = GroupOf(config.model(), table.group);
  v1::TableSpec spec;
  spec.set_name(table.name);
  *spec.mutable_optimizer() = OptimizerOf(config, group);
  *spec.mutable_initializer() = group.has_initializer() ? group.initializer() : table.start;
  if (table.zero_columns > 0) spec.mutable_initializer()->set_zero_columns(table.zero_columns);
  if (group.has_broadcast()) *spec.mutable_broadcast() = group.broadcast();
  if (group.has_memory_max_bytes()) spec.set_memory_max_bytes(group.memory_max_bytes());
  if (group.has_guard()) *spec.mutable_guard() = group.guard();
  const v1::Consistency consistency = ConsistencyOf(config, group);
  if (consistency.kind_case() != v1::Consistency::KIND_NOT_SET) *spec.mutable_consistency() = consistency;
  if (table.group != PlannedTable::Group::kDense) {
    spec.mutable_embedding()->set_dim(table.dim);
    if (group.has_admission()) *spec.mutable_embedding()->mutable_admission() = group.admission();
    if (group.has_eviction()) *spec.mutable_embedding()->mutable_eviction() = group.eviction();
    return spec;
  }
  spec.mutable_dense()->mutable_dims()->Add(table.dims.begin(), table.dims.end());
  if (!group.has_broadcast()) {
    spec.mutable_broadcast()->set_every_ms(kBroadcastEveryMs);
    spec.mutable_broadcast()->set_every_pushes(std::max<uint32_t>(1, config.cluster().workers()));
  }
  return spec;
}

}  // namespace

absl::StatusOr<std::vector<v1::TableSpec>> TablesOf(const ModelPlan& plan, const v1::Config& config) {
  const ModelConfig& model = config.model();
  if (model.dense().has_admission() || model.dense().has_eviction()) {
    return absl::InvalidArgumentError(
        "model.dense: dense tables have neither admission nor eviction; set them in model.linear or "
        "model.embedding");
  }
  std::vector<v1::TableSpec> specs;
  for (const auto* tables : {&plan.dense_tables, &plan.row_tables}) {
    for (const PlannedTable& table : *tables) specs.push_back(SpecOf(table, config));
  }
  // Table "bias", whatever the initializer of dense tables is.
  if (config.train().bias_from_labels()) specs[0].mutable_initializer()->mutable_constant()->set_value(plan.bias);
  return specs;
}

}  // namespace lodestone::worker
