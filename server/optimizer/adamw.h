// AdamW (Loshchilov and Hutter 2019): Adam with decoupled weight decay, w -= lr weight_decay w beside Adam's step.
// State: m, v, and the count.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense.
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateAdamW(const v1::AdamW& config);

}  // namespace lodestone::server
