// The specifications of a plan's tables: what its type wants, with the configuration's optimizers, broadcasts and the
// like.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "proto/table.pb.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {

// The model's tables: dense ones, then embedding tables. The same for all workers.
absl::StatusOr<std::vector<v1::TableSpec>> TablesOf(const ModelPlan& plan, const v1::Config& config);

}  // namespace lodestone::worker
