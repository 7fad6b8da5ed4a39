// Heavy-ball momentum (Polyak 1964): m = momentum m + g; w -= lr m. State: m.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense.
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateMomentum(const v1::Momentum& config);

}  // namespace lodestone::server
