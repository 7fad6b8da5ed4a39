// The linear model: a weight per key and per number.
#pragma once

#include "absl/status/status.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {

// Any data.
absl::Status PlanLinear(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan);

// Where the plan has tables "linear" and "embedding" whose elements are updated alike, makes the linear weights the
// first columns of table "embedding", so that a key has one row, which is pulled and pushed at once. They stay apart if
// model.linear has settings of their own, if the embeddings' optimizer looks at whole rows, and in models that were
// begun so. FAILED_PRECONDITION if schema.continued has them joined and model.linear has settings.
absl::Status JoinLinearRows(const v1::ModelConfig& model, const Schema& schema, ModelPlan* plan);

// Adds what the data has of: table "numeric" [numeric_count, outputs] with the term numeric * weights, and table
// "linear" [key -> outputs] with the sum of the features' weights times their values.
void AddLinearTerms(const Schema& schema, ModelPlan* plan);

}  // namespace lodestone::worker
