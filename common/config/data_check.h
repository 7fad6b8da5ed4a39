// The check of a configuration's section `data`: its files, its format, and the roles of its columns.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "common/config/config_problem.h"
#include "proto/config.pb.h"

namespace lodestone {

// Adds the fields that do not go together, or not with the model's type: only some have several labels, or none.
void CheckData(const v1::DataConfig& data, v1::ModelConfig::Type model, std::vector<ConfigProblem>* problems);

}  // namespace lodestone
