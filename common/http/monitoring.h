// What every process tells over HTTP to whoever watches it.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "common/http/http_server.h"
#include "common/telemetry/metrics.h"

namespace lodestone {

// The paths
//   /metrics  the process's variables (common/telemetry/metrics.h) and what `add` adds to them, as Prometheus reads
//   them; /healthz  200 while the process lives; /readyz   200 if `readiness` is OK, else 503 and its message.
// Both are called on any thread, several at a time.
HttpServer::Paths MonitoringPaths(std::function<void(MetricFamilies*)> add, std::function<absl::Status()> readiness);

}  // namespace lodestone
