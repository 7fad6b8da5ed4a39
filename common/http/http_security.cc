#include "common/http/http_security.h"

#include <memory>

#include "absl/status/status.h"

namespace lodestone {

HttpServer::Security HttpSecurityOf(const CredentialsRef& credentials) {
  HttpServer::Security security;
  if (credentials == nullptr || credentials->certificates() == nullptr) return security;
  // They need the credentials to live.
  security.certificates = std::shared_ptr<CertificateFiles>(credentials, credentials->certificates().get());
  security.asks_clients = credentials->asks_clients();
  if (!security.asks_clients) return security;
  security.check = [](const HttpRequest& request) {
    return request.has_certificate ? absl::OkStatus()
                                   : absl::UnauthenticatedError("no certificate was shown, and this port wants one");
  };
  return security;
}

}  // namespace lodestone
