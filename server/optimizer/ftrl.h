// FTRL-proximal with per-coordinate rates (McMahan et al. 2013, algorithm 1). State: z and n.
//
// z is kept multiplied by the configured learning rate alpha, so that nothing is divided by a small rate:
//   z += rate g - (sqrt(n + g^2) - sqrt(n)) w;  n += g^2
//   w = |z| <= alpha l1 ? 0 : -(z - sign(z) alpha l1) / (beta + sqrt(n) + alpha l2)
// where rate is alpha times the schedule's factor. At a constant rate this is the paper's algorithm; a step at rate 0
// changes no value. Coordinates that had no gradient yet (n = 0) keep their initial value, and their z starts where
// the formula gives it back (soft-thresholded by l1), so that training begins at the table's initializer.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense.
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateFtrl(const v1::Ftrl& config, float learning_rate);

}  // namespace lodestone::server
