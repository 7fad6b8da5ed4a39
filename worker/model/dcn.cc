#include "worker/model/dcn.h"

#include <span>
#include <utility>

#include "common/base/status.h"
#include "kernels/scratch_array.h"
#include "worker/model/cross_network.h"
#include "worker/model/features.h"
#include "worker/model/mlp.h"
#include "worker/model/mlp_model.h"

namespace lodestone::worker {
namespace {

// mlp(cross(x)), or cross(x) * weight where the mlp stands beside it, as a term of its own.
class CrossTerm final : public Term {
 public:
  CrossTerm(const v1::CrossConfig& config, const ModelPlan& plan, kernels::Backend* backend)
      : outputs_(plan.outputs),
        stacked_(config.structure() == v1::CrossConfig::STACKED),
        cross_begin_(plan.TableIndex(config.rank() > 0 ? "cross/0/down" : "cross/0/weight")),
        head_begin_(plan.TableIndex(stacked_ ? "mlp/0/weight" : "cross/out/weight")),
        backend_(backend),
        features_(plan, backend),
        cross_(features_.width(), config.layers(), config.rank(), backend),
        head_(stacked_ ? plan.mlp : std::vector<DenseLayer>{{features_.width(), plan.outputs}}, plan.dropout, backend),
        dy_(backend),
        dx_(backend) {}

  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t> dropout_seed,
               float* logits) override {
    x_ = features_.Gather(batch, parameters);
    y_ = cross_.Forward(batch.size, x_, std::span(parameters.data() + cross_begin_, cross_.tensor_count()));
    const float* const z =
        head_.Forward(batch.size, y_, std::span(parameters.data() + head_begin_, head_.tensor_count()), dropout_seed);
    backend_->Axpy(batch.size * outputs_, 1, z, logits);
  }

  void Backward(const BatchView& batch, const ParameterPointers& parameters, const float* dlogits,
                const GradientPointers& gradients) override {
    const size_t n = batch.size * features_.width();
    float* const dy = dy_.Resize(n);
    head_.Backward(batch.size, y_, std::span(parameters.data() + head_begin_, head_.tensor_count()), dlogits,
                   std::span(gradients.data() + head_begin_, head_.tensor_count()), dy);
    float* const dx = features_.has_rows() ? dx_.Resize(n) : nullptr;
    cross_.Backward(batch.size, x_, std::span(parameters.data() + cross_begin_, cross_.tensor_count()), dy,
                    std::span(gradients.data() + cross_begin_, cross_.tensor_count()), dx);
    if (dx != nullptr) features_.Scatter(batch, dx, gradients);
  }

 private:
  const size_t outputs_;
  const bool stacked_;
  const size_t cross_begin_;
  const size_t head_begin_;
  kernels::Backend* const backend_;
  Features features_;
  CrossNetwork cross_;
  Mlp head_;
  // Of the last Forward.
  const float* x_ = nullptr;
  const float* y_ = nullptr;
  kernels::ScratchArray<float> dy_;
  kernels::ScratchArray<float> dx_;
};

void AddCrossTables(const v1::CrossConfig& cross, uint64_t width, ModelPlan* plan) {
  for (uint32_t l = 0; l < cross.layers(); ++l) {
    const std::string prefix = absl::StrCat("cross/", l);
    if (cross.rank() > 0) {
      plan->AddDense(prefix + "/down", {width, cross.rank()}, Xavier());
      plan->AddDense(prefix + "/up", {cross.rank(), width}, Xavier());
    } else {
      plan->AddDense(prefix + "/weight", {width, width}, Xavier());
    }
    plan->AddDense(prefix + "/bias", {width}, Zeros());
  }
}

}  // namespace

absl::Status PlanDcn(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  LODESTONE_RETURN_IF_ERROR(CheckFieldsOrNumbers(model, schema));
  const v1::CrossConfig& cross = model.cross();
  if (schema.field_count > 0) plan->AddEmbedding(model.embedding_dim());
  const size_t width = plan->FeatureWidth();
  if (cross.rank() >= width) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.cross.rank: ", cross.rank(), " is no less than the ", width,
                     " features that a layer multiplies: leave it away for full matrices, or take a smaller one"));
  }
  AddCrossTables(cross, width, plan);
  if (cross.structure() == v1::CrossConfig::STACKED) {
    plan->mlp = MlpLayers(width, model, plan->outputs);
    plan->AddLayers("mlp", plan->mlp);
  } else {
    plan->AddDense("cross/out/weight", {width, plan->outputs}, Xavier());
    AddMlp(model, schema, plan);
  }
  plan->terms.push_back([cross](const ModelPlan& of, kernels::Backend* backend) {
    return std::make_unique<CrossTerm>(cross, of, backend);
  });
  return absl::OkStatus();
}

}  // namespace lodestone::worker
