#include "worker/model/fm.h"

#include "common/base/check.h"
#include "common/base/status.h"
#include "kernels/scratch_array.h"
#include "worker/model/linear.h"

namespace lodestone::worker {
namespace {

class PairsTerm final : public Term {
 public:
  PairsTerm(const ModelPlan& plan, kernels::Backend* backend)
      : dim_(plan.embedding_dim), table_(plan.TableIndex("embedding")), backend_(backend), sums_(backend) {}

  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t>,
               float* logits) override {
    sums_.Resize(batch.size * dim_);
    backend_->FactorizationMachine(batch.sparse, dim_, parameters[table_], sums_.data(), logits);
  }
  void Backward(const BatchView& batch, const ParameterPointers& parameters, const float* dlogits,
                const GradientPointers& gradients) override {
    backend_->FactorizationMachineBackward(batch.sparse, dim_, parameters[table_], sums_.data(), dlogits,
                                           gradients[table_]);
  }

 private:
  const size_t dim_;
  const size_t table_;
  kernels::Backend* const backend_;
  kernels::ScratchArray<float> sums_;  // [samples, dim], of the last Forward.
};

}  // namespace

void AddPairs(uint32_t dim, ModelPlan* plan) {
  LODESTONE_CHECK(plan->outputs == 1);
  plan->pairs = true;
  plan->AddEmbedding(dim);
  plan->terms.push_back(
      [](const ModelPlan& of, kernels::Backend* backend) { return std::make_unique<PairsTerm>(of, backend); });
}

absl::Status PlanFm(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  LODESTONE_RETURN_IF_ERROR(CheckOneOutput(model, *plan));
  if (!schema.sparse && schema.field_count == 0) {
    return DoesNotFit(model,
                      " needs categorical or sparse features, the data has numeric ones only; use linear or mlp");
  }
  AddLinearTerms(schema, plan);
  AddPairs(model.embedding_dim(), plan);
  return absl::OkStatus();
}

absl::Status PlanMf(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  LODESTONE_RETURN_IF_ERROR(CheckOneOutput(model, *plan));
  if (schema.field_count != 2 || schema.numeric_count > 0) {
    return DoesNotFit(model, absl::StrCat(" needs exactly two categorical fields (user and item) and nothing else, "
                                          "the data has ",
                                          ContentOf(schema), "; name two columns in data.csv.categorical, or use fm"));
  }
  AddLinearTerms(schema, plan);
  AddPairs(model.embedding_dim(), plan);
  return absl::OkStatus();
}

}  // namespace lodestone::worker
