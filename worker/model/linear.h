// The linear model: a weight per key and per number.
#pragma once

#include "absl/status/status.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {

// Any data.
absl::Status PlanLinear(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan);

// Adds what the data has of: table "numeric" [numeric_count, outputs] with the term numeric * weights, and table
// "linear" [key -> outputs] with the sum of the features' weights times their values.
void AddLinearTerms(const Schema& schema, ModelPlan* plan);

}  // namespace lodestone::worker
