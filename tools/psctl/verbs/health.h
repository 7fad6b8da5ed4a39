// `psctl health`: whether a ps is ready, for container health checks and scripts.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

// OK if the ps at `address` is ready, as its gRPC health service says. FAILED_PRECONDITION if it answers and is not,
// with what it waits for; the errors of admin_client.h if nothing answers there within `timeout_ms`; UNIMPLEMENTED
// if what answers has no health service.
absl::Status CheckHealth(const std::string& address, int timeout_ms);

struct HealthOptions {
  std::string address = "127.0.0.1:7000";
  bool json = false;
  int timeout_ms = 2000;
};

// Runs it, with one line of result. Returns the exit code (exit_code.h): 0 ready; 1 it says that it is not.
int RunHealth(const HealthOptions& options);

extern const Verb kHealthVerb;

}  // namespace lodestone::psctl
