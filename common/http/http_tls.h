// The TLS of an HTTP port: the certificate that it shows, and the check of its clients' certificates.
//
// Each connection uses the newest certificate and authorities. A client may show no certificate; with one that the
// authorities do not vouch for its connection ends.
//
// Thread-safe. Must outlive the sessions.
#pragma once

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>

#include <memory>
#include <utility>

#include "common/security/certificates.h"

namespace lodestone {

class HttpTls {
 public:
  // GnuTLS's words for TLS 1.2 and later.
  static constexpr char kPriorities[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

  // `asks_clients`: whether clients are asked for a certificate.
  HttpTls(std::shared_ptr<CertificateFiles> files, bool asks_clients)
      : files_(std::move(files)), asks_clients_(asks_clients) {}

  // In a session's handshake: gives it the chain and key, which GnuTLS frees, and asks for the client's certificate,
  // which `check` is called to judge. 0, or GnuTLS's error.
  int Configure(gnutls_session_t session, gnutls_certificate_verify_function* check, gnutls_pcert_st** chain,
                unsigned* chain_size, gnutls_privkey_t* key) const;
  // Judges the client's certificate. 0 for a good one, and for none.
  int CheckClient(gnutls_session_t session) const;

  // The client's certificate, which was checked; null if there is none.
  std::shared_ptr<X509> ClientCertificate(gnutls_session_t session) const;

 private:
  const std::shared_ptr<CertificateFiles> files_;
  const bool asks_clients_;
};

}  // namespace lodestone
