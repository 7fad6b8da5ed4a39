// The metrics and probes of a ps. A figure of the status is exported by a line in ps_metrics.cc; any other is a
// variable where it is counted (common/telemetry/metrics.h).
//
// Thread safety: pure functions.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "common/http/http_server.h"
#include "common/telemetry/metrics.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

// Tables that have series of their own, the first by name; the others together are the table "(others)".
inline constexpr int kTablesWithSeries = 200;

// Adds the metrics of a status. `ready`: as /readyz says; `now_seconds`: since 1970.
void AddPsMetrics(const v1::StatusResponse& status, bool ready, double now_seconds, MetricFamilies* to);

// /metrics, /healthz and /readyz (common/http/monitoring.h). `fill_status`: as Admin.Status; `readiness`: OK when the
// gRPC health service says that the ps as a whole serves, else why not, or an empty message if the status says. Both
// are called on any thread, several at a time.
HttpServer::Paths PsMonitoringPaths(std::function<void(v1::StatusResponse*)> fill_status,
                                    std::function<absl::Status()> readiness);

}  // namespace lodestone::server
