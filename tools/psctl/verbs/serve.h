// `psctl serve`: answers what a trained model says of samples that requests bring, by gRPC and by JSON over HTTP.
#pragma once

#include <string>

#include "tools/psctl/verbs/open_model.h"
#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

struct ServeOptions {
  ModelOptions model;
  std::string listen = "127.0.0.1:7500";
  std::string http_listen;  // Empty: there is none.
  bool json = false;
};

// Serves until SIGINT, SIGTERM or SIGHUP.
int RunServe(const ServeOptions& options);

extern const Verb kServeVerb;

}  // namespace lodestone::psctl
