#include "common/http/monitoring.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lodestone {

HttpServer::Paths MonitoringPaths(std::function<void(MetricFamilies*)> add, std::function<absl::Status()> readiness) {
  HttpServer::Paths paths;
  paths["/metrics"] = [add = std::move(add)](const HttpRequest&) {
    MetricFamilies families;
    add(&families);
    families.AddProcess();
    families.AddVariables();
    return HttpResponse{200, MetricFamilies::kContentType, families.Text()};
  };
  paths["/healthz"] = [](const HttpRequest&) { return HttpResponse{.body = "ok\n"}; };
  paths["/readyz"] = [readiness = std::move(readiness)](const HttpRequest&) {
    const absl::Status status = readiness();
    if (status.ok()) return HttpResponse{.body = "ready\n"};
    return HttpResponse{.code = 503, .body = absl::StrCat("not ready: ", status.message(), "\n")};
  };
  return paths;
}

}  // namespace lodestone
