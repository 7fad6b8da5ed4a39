#include "common/rpc/grpc_status.h"

#include <string>

namespace lodestone {

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::Status FromCall(const grpc::Status& status) {
  const bool broken =
      status.error_code() == grpc::StatusCode::CANCELLED || status.error_code() == grpc::StatusCode::UNKNOWN;
  return broken ? absl::UnavailableError(status.error_message()) : FromGrpc(status);
}

}  // namespace lodestone
