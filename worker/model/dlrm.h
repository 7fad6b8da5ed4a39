// DLRM (Naumov et al. 2019): a bottom mlp makes a vector of the numbers; the dot products of all pairs of it and the
// fields' embeddings, and it itself, go through a top mlp.
#pragma once

#include "absl/status/status.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {

// INVALID_ARGUMENT without categorical fields or without numeric features.
absl::Status PlanDlrm(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan);

}  // namespace lodestone::worker
