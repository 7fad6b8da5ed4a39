// The models and batches that training steps are measured on: models by name, and batches of random clicks or images,
// whose labels have nothing to do with them. torch_step.py has the same.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "worker/data/dataset.h"
#include "worker/model/model_plan.h"

namespace lodestone::bench {

// `model` is "deepfm/256-128" (type and hidden layers; deepfm, dlrm or mlp), `optimizer` "adagrad" or "sgd".
// INVALID_ARGUMENT, naming what is wrong.
absl::StatusOr<v1::Config> StepConfig(const std::string& model, const std::string& optimizer);

// Of the data that such a model is trained on.
worker::Schema StepSchema(const v1::ModelConfig& model);

// The batch with this number; keys are those of field 0 from 0, of field 1 from kValuesPerField and so on.
worker::Batch DrawBatch(const worker::ModelPlan& plan, uint64_t number, size_t size);

}  // namespace lodestone::bench
