#include "worker/model/features.h"

namespace lodestone::worker {

Features::Features(const ModelPlan& plan, kernels::Backend* backend)
    : width_(plan.FeatureWidth()), numeric_(plan.numeric_count), backend_(backend), x_(backend) {
  size_t col = 0;
  for (size_t g = 0; plan.field_count > 0 && g < plan.groups.count(); ++g) {
    groups_.push_back({plan.FieldsIn(g), plan.group_dims[g], plan.EmbeddingColumns(g), col});
    col += groups_.back().fields * groups_.back().dim;
  }
}

const float* Features::Gather(const BatchView& batch, const ParameterPointers& parameters) {
  if (groups_.empty()) return batch.numeric;
  x_.Resize(batch.size * width_);
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    backend_->GatherFields(batch.groups[g].sparse, group.fields, group.dim, group.rows.Of(parameters), width_,
                           group.col, x_.data());
  }
  if (numeric_ > 0) backend_->CopyColumns(batch.size, numeric_, batch.numeric, width_, width_ - numeric_, x_.data());
  return x_.data();
}

void Features::Scatter(const BatchView& batch, const float* dx, const GradientPointers& gradients) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    backend_->ScatterFields(batch.groups[g].sparse, group.fields, group.dim, dx, width_, group.col,
                            group.rows.Of(gradients));
  }
}

}  // namespace lodestone::worker
