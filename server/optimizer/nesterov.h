// Nesterov's momentum in the form of Sutskever et al. 2013: m = momentum m + g; w -= lr (g + momentum m). State: m.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense.
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateNesterov(const v1::Nesterov& config);

}  // namespace lodestone::server
