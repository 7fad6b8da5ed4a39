// Adam (Kingma and Ba 2015), bias-corrected by the block's or row's own count. State: m, v, and the count.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense.
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateAdam(const v1::Adam& config);

}  // namespace lodestone::server
