// Adagrad (Duchi et al. 2011): s += g^2; w -= lr g / (sqrt(s) + epsilon). State: s.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense. `name` is a literal: the method's in the
// configuration.
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateAdagrad(const v1::Adagrad& config, const char* name = "adagrad");

}  // namespace lodestone::server
