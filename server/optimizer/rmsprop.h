// RMSprop (Hinton 2012): s = rho s + (1 - rho) g^2; w -= lr g / (sqrt(s) + epsilon). State: s.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense.
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateRmsProp(const v1::RmsProp& config);

}  // namespace lodestone::server
