// A process's credentials, as its HTTP port uses them.
//
// Thread safety: pure.
#pragma once

#include "common/credentials.h"
#include "common/http_server.h"

namespace lodestone {

// TLS where there is a certificate; with client_certificates, only who shows one may ask for more than what is open.
HttpServer::Security HttpSecurityOf(const CredentialsRef& credentials);

}  // namespace lodestone
