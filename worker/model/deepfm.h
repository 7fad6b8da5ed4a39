// DeepFM (Guo et al. 2017): a factorization machine beside an mlp over the same embeddings.
#pragma once

#include "absl/status/status.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {

// INVALID_ARGUMENT without categorical fields.
absl::Status PlanDeepFm(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan);

}  // namespace lodestone::worker
