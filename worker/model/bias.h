// The bias of every model, and the prior beside it.
#pragma once

#include "worker/model/model_plan.h"

namespace lodestone::worker {

// Adds table "bias" [outputs], which must be the first, and its term: bias + prior for each sample.
void AddBias(ModelPlan* plan);

}  // namespace lodestone::worker
