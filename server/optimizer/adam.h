// Adam (Kingma and Ba 2015), bias-corrected by the block's or row's own count, and AdamW (Loshchilov and Hutter 2019),
// which is Adam with decoupled weight decay: w -= lr weight_decay w beside Adam's step. State: m, v, and the count.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense.
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateAdam(const v1::Adam& config);
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateAdamW(const v1::AdamW& config);

}  // namespace lodestone::server
