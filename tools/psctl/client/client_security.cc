#include "tools/psctl/client/client_security.h"

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "common/base/status.h"
#include "common/config/config.h"

namespace lodestone::psctl {
namespace {

struct InUse {
  v1::SecurityConfig security;
  CredentialsRef credentials;
};

InUse& Used() {
  static InUse* const used = new InUse;
  return *used;
}

}  // namespace

void AddSecurity(CLI::App* app, SecurityOptions* options) {
  app->add_option(
         "--config", options->config_path,
         "A cluster's configuration, whose `security` says what calls show and believe: token, certificate, key, "
         "authorities")
      ->type_name("FILE");
  app->add_option("--set", options->sets, "Overrides one field of it: security.token=FILE")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
}

absl::Status UseSecurity(const SecurityOptions& options) {
  if (options.config_path.empty() && options.sets.empty()) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const v1::Config config, options.config_path.empty()
                                                          ? ParseConfig("", "psctl", options.sets)
                                                          : LoadConfig(options.config_path, options.sets));
  return UseSecurity(config.security());
}

absl::Status UseSecurity(const v1::SecurityConfig& security) {
  LODESTONE_ASSIGN_OR_RETURN(Used().credentials, Credentials::Make(security));
  Used().security = security;
  return absl::OkStatus();
}

const CredentialsRef& UsedCredentials() { return Used().credentials; }
const v1::SecurityConfig& UsedSecurity() { return Used().security; }

}  // namespace lodestone::psctl
