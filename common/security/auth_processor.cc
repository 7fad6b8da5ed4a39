#include "common/security/auth_processor.h"

#include <string>
#include <utility>

namespace lodestone {

AuthProcessor::AuthProcessor(Authorizer authorize, std::shared_ptr<const void> owner)
    : authorize_(std::move(authorize)), owner_(std::move(owner)) {}

grpc::Status AuthProcessor::Process(const InputMetadata& metadata, grpc::AuthContext* connection, OutputMetadata*,
                                    OutputMetadata*) {
  if (authorize_ == nullptr) return grpc::Status::OK;
  IncomingCall call = CallOf(metadata, connection);
  if (const auto path = metadata.find(":path"); path != metadata.end()) {
    call.method.assign(path->second.data(), path->second.size());
  }
  const absl::Status status = authorize_(call);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace lodestone
