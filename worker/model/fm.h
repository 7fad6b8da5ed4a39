// The factorization machine (Rendle 2010) and matrix factorization (Koren et al. 2009), which is the former of two
// fields.
#pragma once

#include "absl/status/status.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {

// Linear and second-order term. INVALID_ARGUMENT without categories or sparse features.
absl::Status PlanFm(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan);
// The same of user and item: INVALID_ARGUMENT unless there are exactly two fields and nothing else.
absl::Status PlanMf(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan);

// Adds table "embedding" [key -> dim], if it is not there, and the second-order term
//   1/2 sum_d ((sum_f v_fd x_f)^2 - sum_f (v_fd x_f)^2)
// over its rows and, with model.numeric_pairs, over the numbers, whose vectors are rows of table "numeric_embedding"
// [numeric_count, dim]. FAILED_PRECONDITION if the configuration asks for other pairs than schema.continued has.
// REQUIRES: one output.
absl::Status AddPairs(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan);

}  // namespace lodestone::worker
