// Credentials of psctl's calls: token, certificate and authorities, as in a configuration's section `security`.
//
// Not thread-safe; set it before anything is called.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/security/credentials.h"
#include "proto/config.pb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace lodestone::psctl {

// The flags that name the configuration.
struct SecurityOptions {
  std::string config_path;
  std::vector<std::string> sets;
};

// Adds the flags to psctl's own; where a verb has flags of the same name, theirs count behind it.
void AddSecurity(CLI::App* app, SecurityOptions* options);

// From now on calls are made with what the flags say; or with `security`.
absl::Status UseSecurity(const SecurityOptions& options);
absl::Status UseSecurity(const v1::SecurityConfig& security);

// What calls are made with; null: plain.
const CredentialsRef& UsedCredentials();
// The configuration that they were made of.
const v1::SecurityConfig& UsedSecurity();

}  // namespace lodestone::psctl
