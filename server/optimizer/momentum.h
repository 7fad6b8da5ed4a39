// Heavy-ball momentum (Polyak 1964): m = momentum m + g; w -= lr m. And Nesterov's in the form of Sutskever et al.
// 2013: w -= lr (g + momentum m). State: m.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense.
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateMomentum(const v1::Momentum& config);
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateNesterov(const v1::Nesterov& config);

}  // namespace lodestone::server
