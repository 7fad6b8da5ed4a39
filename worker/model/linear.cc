#include "worker/model/linear.h"

#include <algorithm>

#include "common/base/limits.h"

namespace lodestone::worker {
namespace {

class NumericTerm final : public Term {
 public:
  NumericTerm(const ModelPlan& plan, kernels::Backend* backend)
      : outputs_(plan.outputs), count_(plan.numeric_count), table_(plan.TableIndex("numeric")), backend_(backend) {}

  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t>,
               float* logits) override {
    backend_->MatMul(false, false, batch.size, outputs_, count_, 1, batch.numeric, parameters[table_], 1, logits);
  }
  void Backward(const BatchView& batch, const ParameterPointers&, const float* dlogits,
                const GradientPointers& gradients) override {
    backend_->MatMul(true, false, count_, outputs_, batch.size, 1, batch.numeric, dlogits, 0, gradients[table_]);
  }

 private:
  const size_t outputs_;
  const size_t count_;
  const size_t table_;
  kernels::Backend* const backend_;
};

class RowsTerm final : public Term {
 public:
  RowsTerm(const ModelPlan& plan, kernels::Backend* backend) : outputs_(plan.outputs), backend_(backend) {
    for (size_t g = 0; g < plan.groups.count(); ++g) weights_.push_back(plan.LinearColumns(g));
  }

  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t>,
               float* logits) override {
    for (size_t g = 0; g < weights_.size(); ++g) {
      backend_->SparseLinear(batch.groups[g].sparse, outputs_, weights_[g].Of(parameters), logits);
    }
  }
  void Backward(const BatchView& batch, const ParameterPointers&, const float* dlogits,
                const GradientPointers& gradients) override {
    for (size_t g = 0; g < weights_.size(); ++g) {
      backend_->SparseLinearBackward(batch.groups[g].sparse, outputs_, dlogits, weights_[g].Of(gradients));
    }
  }

 private:
  const size_t outputs_;
  std::vector<TableColumns> weights_;  // By field group.
  kernels::Backend* const backend_;
};

// Whether an update of an element of a row depends on its other elements.
bool CouplesElements(const v1::Optimizer& optimizer) {
  return optimizer.has_rowwise_adagrad() || optimizer.clip().row_norm() > 0;
}

}  // namespace

void AddLinearTerms(const Schema& schema, ModelPlan* plan) {
  plan->linear_numeric = schema.numeric_count > 0;
  plan->linear_rows = schema.sparse || schema.field_count > 0;
  if (plan->linear_numeric) {
    plan->AddDense("numeric", {plan->numeric_count, plan->outputs}, Zeros());
    plan->terms.push_back(
        [](const ModelPlan& of, kernels::Backend* backend) { return std::make_unique<NumericTerm>(of, backend); });
  }
  if (plan->linear_rows) {
    plan->AddRows("linear", PlannedTable::Group::kLinear, plan->outputs, Zeros());
    plan->terms.push_back(
        [](const ModelPlan& of, kernels::Backend* backend) { return std::make_unique<RowsTerm>(of, backend); });
  }
}

absl::Status JoinLinearRows(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  if (!plan->linear_rows || plan->embedding_dim == 0) return absl::OkStatus();
  bool joins =
      !model.has_linear() && !CouplesElements(model.embedding().optimizer()) &&
      (model.embedding().has_optimizer() || !CouplesElements(model.optimizer())) &&
      plan->outputs + *std::max_element(plan->group_dims.begin(), plan->group_dims.end()) <= limits::kEmbeddingDimMax;
  if (schema.continued != nullptr) {
    joins = schema.continued->linear_columns() > 0;
    if (joins && model.has_linear()) {
      return absl::FailedPreconditionError(
          "the cluster holds a model whose linear weights are columns of table embedding, with the settings of "
          "model.embedding; leave model.linear away to go on training it, or start the servers with another "
          "server.data_dir");
    }
  }
  if (!joins) return absl::OkStatus();
  std::erase_if(plan->row_tables,
                [](const PlannedTable& table) { return table.group == PlannedTable::Group::kLinear; });
  plan->linear_columns = plan->outputs;
  for (PlannedTable& table : plan->row_tables) {
    table.zero_columns = plan->outputs;
    table.dim += plan->outputs;
  }
  return absl::OkStatus();
}

absl::Status PlanLinear(const v1::ModelConfig&, const Schema& schema, ModelPlan* plan) {
  AddLinearTerms(schema, plan);
  return absl::OkStatus();
}

}  // namespace lodestone::worker
