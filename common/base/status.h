// Macros and helpers for absl::Status, the error type of every part of Lodestone.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lodestone {

// `status` with "context: " before its message; OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace lodestone

// Returns from the enclosing function if `expr` (an absl::Status) is not OK.
#define LODESTONE_RETURN_IF_ERROR(expr)                                                             \
  do {                                                                                              \
    if (absl::Status lodestone_status_ = (expr); !lodestone_status_.ok()) return lodestone_status_; \
  } while (false)

#define LODESTONE_CONCAT_INNER_(a, b) a##b
#define LODESTONE_CONCAT_(a, b) LODESTONE_CONCAT_INNER_(a, b)

// Declares `lhs` from the value of `expr` (an absl::StatusOr), or returns its error from the enclosing function.
#define LODESTONE_ASSIGN_OR_RETURN(lhs, expr) \
  LODESTONE_ASSIGN_OR_RETURN_IMPL_(LODESTONE_CONCAT_(lodestone_statusor_, __LINE__), lhs, expr)
#define LODESTONE_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                                     \
  if (!var.ok()) return var.status();                    \
  lhs = *std::move(var)
