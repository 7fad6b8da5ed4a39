#include "common/security/incoming_call.h"

#include "absl/strings/match.h"
#include "grpc/grpc_security_constants.h"

namespace lodestone {

IncomingCall CallOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata,
                    const grpc::AuthContext* connection) {
  IncomingCall call;
  const auto [first, last] = metadata.equal_range(kAuthorizationKey);
  for (auto at = first; at != last; ++at) call.authorization.emplace_back(at->second.data(), at->second.size());
  const auto agent = metadata.find("user-agent");
  if (agent != metadata.end()) call.agent.assign(agent->second.data(), agent->second.size());
  if (connection == nullptr) return call;
  for (const char* property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_PEER_DNS_PROPERTY_NAME}) {
    for (const grpc::string_ref& name : connection->FindPropertyValues(property)) {
      call.certificate_names.emplace_back(name.data(), name.size());
    }
  }
  return call;
}

IncomingCall CallOf(const grpc::ServerContextBase& context) {
  IncomingCall call = CallOf(context.client_metadata(), context.auth_context().get());
  call.peer = context.peer();
  return call;
}

absl::string_view BearerToken(absl::string_view authorization) {
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) return "";
  return authorization.substr(kScheme.size());
}

}  // namespace lodestone
