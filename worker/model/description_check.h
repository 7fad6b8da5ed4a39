// Whether a model's description makes sense, and whether a configured model goes on from it.
//
// Thread safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"

namespace lodestone::worker {

struct ModelPlan;

// FAILED_PRECONDITION if this program does not know the format, INVALID_ARGUMENT if the description contradicts itself.
absl::Status CheckDescription(const v1::ModelDescription& description);

// FAILED_PRECONDITION, saying what to do, if a model of this type and loss cannot go on from what is described.
absl::Status CheckContinues(const v1::ModelDescription& known, v1::ModelConfig::Type type, v1::ModelConfig::Loss loss);
// The same if the configured model, of the same type and as planned, has other layers than the described one, or would
// compute something else of the same tables.
absl::Status CheckContinues(const v1::ModelDescription& known, const v1::ModelConfig& model, const ModelPlan& plan);
absl::Status CheckContinues(const v1::ModelDescription& known, const v1::DataConfig& data);

}  // namespace lodestone::worker
