// absl::Status is the error of every part of Lodestone; gRPC has its own with the same codes.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace lodestone {

// The same code and message.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// What a call of ours ended with. A connection that breaks, or a peer that shuts down, ends it with UNAVAILABLE, but
// now and then with CANCELLED or UNKNOWN, which no method answers by itself: those are UNAVAILABLE here.
absl::Status FromCall(const grpc::Status& status);

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
