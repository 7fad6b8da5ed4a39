#include "server/monitoring/ps_http.h"

#include <chrono>
#include <utility>

#include "common/base/host_port.h"
#include "common/http/monitoring.h"
#include "common/telemetry/readiness.h"
#include "server/monitoring/ps_metrics.h"

namespace lodestone::server {
namespace {

double SecondsSince1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

HttpServer::Paths PsMonitoringPaths(std::function<void(v1::StatusResponse*)> fill_status,
                                    std::function<absl::Status()> readiness) {
  const auto add_metrics = [fill_status, readiness](MetricFamilies* families) {
    v1::StatusResponse status;
    fill_status(&status);
    AddPsMetrics(status, readiness().ok(), SecondsSince1970(), families);
  };
  const auto explained = [fill_status, readiness] {
    absl::Status ready = readiness();
    if (ready.ok() || !ready.message().empty()) return ready;
    v1::StatusResponse status;
    fill_status(&status);
    const std::string why = WhyNotReady(status);
    return absl::UnavailableError(why.empty() ? "this ps has not got its shards yet" : why);
  };
  return MonitoringPaths(add_metrics, explained);
}

std::string HttpAddress(const std::string& listen, const std::string& address, uint16_t port) {
  HostPort http = *ParseHostPort(listen);
  if (!IsLoopback(http.host)) http.host = ParseHostPort(address)->host;
  http.port = port;
  return FormatHostPort(http);
}

}  // namespace lodestone::server
