// Wide & Deep (Cheng et al. 2016): a linear model, which remembers, beside an mlp over embeddings, which generalizes.
#pragma once

#include "absl/status/status.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {

// INVALID_ARGUMENT of sparse samples.
absl::Status PlanWideDeep(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan);

}  // namespace lodestone::worker
