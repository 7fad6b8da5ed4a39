#include "worker/model/features.h"

namespace lodestone::worker {

Features::Features(const ModelPlan& plan, kernels::Backend* backend)
    : fields_(plan.field_count),
      dim_(plan.embedding_dim),
      numeric_(plan.numeric_count),
      embedding_(fields_ > 0 ? plan.EmbeddingColumns() : TableColumns()),
      backend_(backend),
      x_(backend) {}

const float* Features::Gather(const BatchView& batch, const ParameterPointers& parameters) {
  if (fields_ == 0) return batch.numeric;
  x_.Resize(batch.size * width());
  backend_->GatherFields(batch.sparse, fields_, dim_, embedding_.Of(parameters), width(), 0, x_.data());
  if (numeric_ > 0) {
    backend_->CopyColumns(batch.size, numeric_, batch.numeric, width(), fields_ * dim_, x_.data());
  }
  return x_.data();
}

void Features::Scatter(const BatchView& batch, const float* dx, const GradientPointers& gradients) {
  if (fields_ > 0) backend_->ScatterFields(batch.sparse, fields_, dim_, dx, width(), 0, embedding_.Of(gradients));
}

}  // namespace lodestone::worker
