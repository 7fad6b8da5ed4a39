// The credentials that a call shows: token, certificate names, and where it comes from.
//
// Thread safety: pure.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/string_ref.h"

namespace lodestone {

// The metadata key of a token, as in HTTP.
inline constexpr char kAuthorizationKey[] = "authorization";

struct IncomingCall {
  std::string method;                          // "/lodestone.v1.Admin/Status". Empty where the service knows it.
  std::vector<std::string> authorization;      // Values of that metadata key: more than one is refused.
  std::vector<std::string> certificate_names;  // Of the verified client certificate: common name and DNS names.
  std::string peer;                            // The caller's address; empty before the call reaches its service.
  std::string agent;                           // The name of the calling program.
};

// The call of a service's handler.
IncomingCall CallOf(const grpc::ServerContextBase& context);
// A call known by its metadata and its connection (null: none): without method and peer.
IncomingCall CallOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata,
                    const grpc::AuthContext* connection);

// The token of "Bearer TOKEN"; empty if the text has another form.
absl::string_view BearerToken(absl::string_view authorization);

}  // namespace lodestone
