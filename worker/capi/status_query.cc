#include "worker/capi/status_query.h"

#include <chrono>
#include <memory>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "common/security/credentials.h"
#include "grpcpp/client_context.h"
#include "proto/admin.grpc.pb.h"

namespace lodestone::worker {

absl::StatusOr<v1::StatusResponse> QueryStatus(const v1::Config& config) {
  const std::string& address = config.coordinator().address();
  if (address.empty()) return absl::InvalidArgumentError("coordinator.address is not set: it names the ps to ask");
  LODESTONE_ASSIGN_OR_RETURN(const CredentialsRef credentials, Credentials::Make(config.security()));
  const auto stub = v1::Admin::NewStub(MakeChannel(address, config.server().message_max_bytes(), credentials));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(config.worker().call_timeout_ms()));
  v1::StatusResponse response;
  LODESTONE_RETURN_IF_ERROR(Annotate(FromGrpc(stub->Status(&context, {}, &response)), address));
  return response;
}

}  // namespace lodestone::worker
