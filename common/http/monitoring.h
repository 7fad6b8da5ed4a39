// The monitoring of a process over HTTP: metrics, probes, and the security and address of the port.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/http/http_server.h"
#include "common/security/credentials.h"
#include "common/telemetry/metrics.h"

namespace lodestone {

// The paths
//   /metrics  the process's variables (common/telemetry/metrics.h) and what `add` adds to them, in Prometheus' text
//             format;
//   /healthz  200 while the process lives;
//   /readyz   200 if `readiness` is OK, else 503 and its message.
// Both are called on any thread, several at a time.
HttpServer::Paths MonitoringPaths(std::function<void(MetricFamilies*)> add, std::function<absl::Status()> readiness);

// TLS where there is a certificate; with client_certificates, only clients with one may read paths that are not open.
HttpServer::Security HttpSecurityOf(const CredentialsRef& credentials);

// The address at which others reach the HTTP port of a process that is bound to `listen`, and there to `port`: on the
// host at which they reach the process itself (`address`, host:port); on loopback if it listens there only. REQUIRES:
// both are addresses.
std::string HttpAddress(const std::string& listen, const std::string& address, uint16_t port);

}  // namespace lodestone
