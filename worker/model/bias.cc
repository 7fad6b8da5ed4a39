#include "worker/model/bias.h"

#include "common/base/check.h"
#include "kernels/scratch_array.h"

namespace lodestone::worker {
namespace {

class BiasTerm final : public Term {
 public:
  BiasTerm(const ModelPlan& plan, kernels::Backend* backend)
      : outputs_(plan.outputs), prior_host_(plan.prior), backend_(backend), prior_(backend) {
    prior_.Resize(prior_host_.size());
    backend_->CopyIn(kernels::Queue::kCompute, prior_host_.size() * sizeof(float), prior_host_.data(), prior_.data());
  }

  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t>,
               float* logits) override {
    backend_->AddBias(batch.size, outputs_, parameters[0], logits);
    if (prior_.size() > 0) backend_->AddBias(batch.size, outputs_, prior_.data(), logits);
  }
  void Backward(const BatchView& batch, const ParameterPointers&, const float* dlogits,
                const GradientPointers& gradients) override {
    backend_->ColumnSums(batch.size, outputs_, dlogits, gradients[0]);
  }

 private:
  const size_t outputs_;
  const std::vector<float> prior_host_;  // What is queued to be copied must stay.
  kernels::Backend* const backend_;
  kernels::ScratchArray<float> prior_;
};

}  // namespace

void AddBias(ModelPlan* plan) {
  LODESTONE_CHECK(plan->dense_tables.empty());
  plan->AddDense("bias", {plan->outputs}, Zeros());
  plan->terms.push_back(
      [](const ModelPlan& of, kernels::Backend* backend) { return std::make_unique<BiasTerm>(of, backend); });
}

}  // namespace lodestone::worker
