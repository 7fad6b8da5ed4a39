#include "common/http/http_tls.h"

#include <openssl/err.h>
#include <openssl/x509_vfy.h>

#include <string>
#include <vector>

namespace lodestone {
namespace {

constexpr unsigned kChainMax = 16;  // Certificates in a chain.

gnutls_datum_t DatumOf(const std::string& text) {
  return {reinterpret_cast<unsigned char*>(const_cast<char*>(text.data())), static_cast<unsigned>(text.size())};
}

// The chain that the client of a session showed, its own certificate first.
std::vector<std::shared_ptr<X509>> ChainOf(gnutls_session_t session) {
  std::vector<std::shared_ptr<X509>> chain;
  unsigned count = 0;
  const gnutls_datum_t* const shown = gnutls_certificate_get_peers(session, &count);
  for (unsigned i = 0; shown != nullptr && i < count; ++i) {
    const unsigned char* from = shown[i].data;
    chain.emplace_back(d2i_X509(nullptr, &from, shown[i].size), X509_free);
    if (chain.back() == nullptr) return {};
  }
  return chain;
}

}  // namespace

int HttpTls::Configure(gnutls_session_t session, gnutls_certificate_verify_function* check, gnutls_pcert_st** chain,
                       unsigned* chain_size, gnutls_privkey_t* key) const {
  const std::shared_ptr<const CertificateSet> set = files_->Newest();
  const gnutls_datum_t chain_pem = DatumOf(set->certificate_pem), key_pem = DatumOf(set->key_pem);
  auto* certificates = static_cast<gnutls_pcert_st*>(gnutls_calloc(kChainMax, sizeof(gnutls_pcert_st)));
  if (certificates == nullptr) return GNUTLS_E_MEMORY_ERROR;
  unsigned count = kChainMax;
  gnutls_privkey_t private_key = nullptr;
  int error = gnutls_pcert_list_import_x509_raw(certificates, &count, &chain_pem, GNUTLS_X509_FMT_PEM, 0);
  if (error != GNUTLS_E_SUCCESS) count = 0;
  if (error == GNUTLS_E_SUCCESS) error = gnutls_privkey_init(&private_key);
  if (error == GNUTLS_E_SUCCESS) {
    error = gnutls_privkey_import_x509_raw(private_key, &key_pem, GNUTLS_X509_FMT_PEM, nullptr, 0);
  }
  if (error != GNUTLS_E_SUCCESS) {
    if (private_key != nullptr) gnutls_privkey_deinit(private_key);
    for (unsigned i = 0; i < count; ++i) gnutls_pcert_deinit(&certificates[i]);
    gnutls_free(certificates);
    return error;
  }
  if (asks_clients_) {
    gnutls_certificate_server_set_request(session, GNUTLS_CERT_REQUEST);
    gnutls_session_set_verify_function(session, check);
  }
  *chain = certificates;
  *chain_size = count;
  *key = private_key;
  return GNUTLS_E_SUCCESS;
}

int HttpTls::CheckClient(gnutls_session_t session) const {
  unsigned count = 0;
  if (gnutls_certificate_get_peers(session, &count) == nullptr || count == 0) return 0;
  const std::vector<std::shared_ptr<X509>> chain = ChainOf(session);
  const std::shared_ptr<const CertificateSet> set = files_->Newest();
  if (chain.empty() || set->authorities == nullptr) return GNUTLS_E_CERTIFICATE_ERROR;
  const std::unique_ptr<STACK_OF(X509), void (*)(STACK_OF(X509)*)> others(
      sk_X509_new_null(), [](STACK_OF(X509) * stack) { sk_X509_free(stack); });
  for (const auto& one : chain) sk_X509_push(others.get(), one.get());
  const std::unique_ptr<X509_STORE_CTX, void (*)(X509_STORE_CTX*)> check(X509_STORE_CTX_new(), X509_STORE_CTX_free);
  const bool good = check != nullptr &&
                    X509_STORE_CTX_init(check.get(), set->authorities.get(), chain[0].get(), others.get()) == 1 &&
                    X509_STORE_CTX_set_default(check.get(), "ssl_client") == 1 && X509_verify_cert(check.get()) == 1;
  ERR_clear_error();
  return good ? 0 : GNUTLS_E_CERTIFICATE_ERROR;
}

std::shared_ptr<X509> HttpTls::ClientCertificate(gnutls_session_t session) const {
  if (!asks_clients_) return nullptr;
  const std::vector<std::shared_ptr<X509>> chain = ChainOf(session);
  return chain.empty() ? nullptr : chain.front();
}

}  // namespace lodestone
