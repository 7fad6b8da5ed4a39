// The HTTP port of a worker: /metrics, /healthz and /readyz (common/http/monitoring.h). It is there before the worker
// has joined the cluster, and ready while it trains, waits for others at the end, or evaluates.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/http/http_server.h"
#include "common/telemetry/metrics.h"
#include "proto/coordinator.pb.h"

namespace lodestone::worker {

class WorkerHttp {
 public:
  // Binds `listen`. INVALID_ARGUMENT or UNAVAILABLE, as HttpServer, naming worker.http_listen.
  static absl::StatusOr<std::unique_ptr<WorkerHttp>> Start(const std::string& listen,
                                                           HttpServer::Security security = {});

  uint16_t port() const { return server_->port(); }

  // The worker has joined as `index`; sets what the page shows of it.
  void Joined(uint32_t index);
  void Report(const v1::WorkerProgress& progress);

 private:
  WorkerHttp() = default;
  void AddMetrics(MetricFamilies* to) const;
  absl::Status Readiness() const;

  mutable Mutex mu_;
  bool joined_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t index_ ABSL_GUARDED_BY(mu_) = 0;
  v1::WorkerProgress progress_ ABSL_GUARDED_BY(mu_);

  std::unique_ptr<HttpServer> server_;  // Last: it uses all of the above. Constant after Start.
};

}  // namespace lodestone::worker
