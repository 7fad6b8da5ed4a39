// A process's credentials, as its HTTP port uses them.
//
// Thread safety: pure.
#pragma once

#include "common/http/http_server.h"
#include "common/security/credentials.h"

namespace lodestone {

// TLS where there is a certificate; with client_certificates, only who shows one may ask for more than what is open.
HttpServer::Security HttpSecurityOf(const CredentialsRef& credentials);

}  // namespace lodestone
