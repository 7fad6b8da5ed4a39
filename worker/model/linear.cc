#include "worker/model/linear.h"

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
  RowsTerm(const ModelPlan& plan, kernels::Backend* backend)
      : outputs_(plan.outputs), table_(plan.TableIndex("linear")), backend_(backend) {}

  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t>,
               float* logits) override {
    backend_->SparseLinear(batch.sparse, outputs_, parameters[table_], logits);
  }
  void Backward(const BatchView& batch, const ParameterPointers&, const float* dlogits,
                const GradientPointers& gradients) override {
    backend_->SparseLinearBackward(batch.sparse, outputs_, dlogits, gradients[table_]);
  }

 private:
  const size_t outputs_;
  const size_t table_;
  kernels::Backend* const backend_;
};

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

absl::Status PlanLinear(const v1::ModelConfig&, const Schema& schema, ModelPlan* plan) {
  AddLinearTerms(schema, plan);
  return absl::OkStatus();
}

}  // namespace lodestone::worker
