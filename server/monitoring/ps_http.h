// What a ps tells over HTTP.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/http/http_server.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

// /metrics, /healthz and /readyz (common/http/monitoring.h). `fill_status`: as Admin.Status; `readiness`: OK when the
// gRPC health service says that the ps as a whole serves, else why not, or an empty message if the status says. Both
// are called on any thread, several at a time.
HttpServer::Paths PsMonitoringPaths(std::function<void(v1::StatusResponse*)> fill_status,
                                    std::function<absl::Status()> readiness);

// Where others reach the HTTP port of a ps that is bound to `listen`, and there to `port`: on the host at which they
// reach the ps itself (`address`, host:port); on loopback if it listens there only. REQUIRES: both are addresses.
std::string HttpAddress(const std::string& listen, const std::string& address, uint16_t port);

}  // namespace lodestone::server
