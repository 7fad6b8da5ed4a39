#include "common/http/monitoring.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"

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

HttpServer::Security HttpSecurityOf(const CredentialsRef& credentials) {
  HttpServer::Security security;
  if (credentials == nullptr || credentials->certificates() == nullptr) return security;
  // The credentials keep the certificates up to date.
  security.certificates = std::shared_ptr<CertificateFiles>(credentials, credentials->certificates().get());
  security.asks_clients = credentials->asks_clients();
  if (!security.asks_clients) return security;
  security.check = [](const HttpRequest& request) {
    return request.has_certificate ? absl::OkStatus()
                                   : absl::UnauthenticatedError("this port needs a client certificate; show one");
  };
  return security;
}

std::string HttpAddress(const std::string& listen, const std::string& address, uint16_t port) {
  HostPort http = *ParseHostPort(listen);
  if (!IsLoopback(http.host)) http.host = ParseHostPort(address)->host;
  http.port = port;
  return FormatHostPort(http);
}

}  // namespace lodestone
