#include "worker/model/mlp_model.h"

#include <span>

#include "common/base/status.h"
#include "kernels/scratch_array.h"
#include "worker/model/features.h"
#include "worker/model/mlp.h"

namespace lodestone::worker {
namespace {

class MlpTerm final : public Term {
 public:
  MlpTerm(const ModelPlan& plan, kernels::Backend* backend)
      : outputs_(plan.outputs),
        begin_(plan.TableIndex("mlp/0/weight")),
        backend_(backend),
        features_(plan, backend),
        mlp_(plan.mlp, plan.dropout, backend),
        dx_(backend) {}

  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t> dropout_seed,
               float* logits) override {
    x_ = features_.Gather(batch, parameters);
    const float* const y = mlp_.Forward(batch.size, x_, Tensors(parameters), dropout_seed);
    backend_->Axpy(batch.size * outputs_, 1, y, logits);
  }
  void Backward(const BatchView& batch, const ParameterPointers& parameters, const float* dlogits,
                const GradientPointers& gradients) override {
    float* const dx = features_.has_rows() ? dx_.Resize(batch.size * features_.width()) : nullptr;
    mlp_.Backward(batch.size, x_, Tensors(parameters), dlogits,
                  std::span(gradients.data() + begin_, mlp_.tensor_count()), dx);
    if (dx != nullptr) features_.Scatter(batch, dx, gradients);
  }

 private:
  std::span<const float* const> Tensors(const ParameterPointers& parameters) const {
    return {parameters.data() + begin_, mlp_.tensor_count()};
  }

  const size_t outputs_;
  const size_t begin_;  // Of the mlp's tables.
  kernels::Backend* const backend_;
  Features features_;
  Mlp mlp_;
  const float* x_ = nullptr;  // Of the last Forward.
  kernels::ScratchArray<float> dx_;
};

}  // namespace

void AddMlp(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  if (schema.field_count > 0) plan->AddEmbedding(model.embedding_dim());
  plan->mlp = MlpLayers(plan->FeatureWidth(), model, plan->outputs);
  plan->AddLayers("mlp", plan->mlp);
  // The first term, as it always was: another order of sums has other roundings.
  plan->terms.insert(plan->terms.begin(), [](const ModelPlan& of, kernels::Backend* backend) {
    return std::make_unique<MlpTerm>(of, backend);
  });
}

absl::Status PlanMlp(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  LODESTONE_RETURN_IF_ERROR(CheckFieldsOrNumbers(model, schema));
  AddMlp(model, schema, plan);
  return absl::OkStatus();
}

}  // namespace lodestone::worker
