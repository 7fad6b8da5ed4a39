// Row-wise Adagrad (as FBGEMM and DLRM have it for embeddings): s += mean of the row's g^2; w -= lr g / (sqrt(s) +
// epsilon). State: s, one number for each row, where Adagrad keeps as many as the row has values. Values without rows,
// those of dense tables, have Adagrad itself: each is a row of its own.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if a hyperparameter makes no sense.
absl::StatusOr<std::unique_ptr<const Optimizer>> CreateRowwiseAdagrad(const v1::RowwiseAdagrad& config, bool has_rows);

}  // namespace lodestone::server
