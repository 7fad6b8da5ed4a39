// The multi-layer perceptron over the fields' embeddings and the numeric features.
#pragma once

#include "absl/status/status.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {

// INVALID_ARGUMENT of sparse samples.
absl::Status PlanMlp(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan);

// Adds tables "mlp/..." and the term mlp(x), which comes first; x is the fields' embeddings, of table "embedding" [key
// -> embedding_dim], which is added if it is not there, beside the numeric features.
void AddMlp(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan);

}  // namespace lodestone::worker
