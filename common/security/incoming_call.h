// What a call shows of its caller.
//
// Thread safety: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "grpcpp/server_context.h"

namespace lodestone {

// The metadata that holds a token, as in HTTP.
inline constexpr char kAuthorizationKey[] = "authorization";

struct IncomingCall {
  std::string method;                          // "/lodestone.v1.Admin/Status". Empty where the service knows it.
  std::vector<std::string> authorization;      // That metadata's values: one or none, if the caller is in his senses.
  std::vector<std::string> certificate_names;  // Of a certificate that was checked: its common name and DNS names.
  std::string peer;                            // Where it comes from; empty before a service has it.
  std::string agent;                           // What the caller calls its program.
};

// Of a call that a service has got.
IncomingCall CallOf(const grpc::ServerContextBase& context);

// The token of "Bearer TOKEN"; empty if the text is something else.
absl::string_view BearerToken(absl::string_view authorization);

}  // namespace lodestone
