// DCN-V2 (Wang et al. 2021): a cross network and an mlp over the fields' embeddings and the numbers.
#pragma once

#include "absl/status/status.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {

// INVALID_ARGUMENT of sparse samples, and if model.cross.rank is no less than the features' width.
absl::Status PlanDcn(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan);

}  // namespace lodestone::worker
