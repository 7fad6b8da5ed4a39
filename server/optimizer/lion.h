// Lion (Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2): steps of one size, in the sign
// of an interpolated momentum, with decoupled weight decay. State: the momentum m.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense.
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateLion(const v1::Lion& config);

}  // namespace lodestone::server
