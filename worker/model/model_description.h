// The description of a model (proto/model.proto): written for a plan, and made into a plan again.
//
// Thread safety: pure functions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "proto/model.pb.h"
#include "proto/table.pb.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

struct ModelPlan;

// The table whose specification has the description: every model has it.
inline constexpr char kDescribedTable[] = "bias";

// The newest format that this program reads. It writes the oldest one that says all of the model.
inline constexpr uint32_t kModelFormat = 8;

// The description of a new model on data of `schema`.
v1::ModelDescription DescribeModel(const ModelPlan& plan, const v1::ModelConfig& config, const Schema& schema,
                                   const std::vector<v1::TableSpec>& tables);

// Names as descriptions have them.
std::string StructureName(const v1::CrossConfig& cross);
std::string StructureName(const v1::MultitaskConfig& multitask);

// The configuration (model, and data's format and columns) and the schema of data that a described model takes.
// REQUIRES: CheckDescription is OK.
v1::Config ConfigOf(const v1::ModelDescription& description);
Schema SchemaOf(const std::shared_ptr<const v1::ModelDescription>& description);

}  // namespace lodestone::worker
