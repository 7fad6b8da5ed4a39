#include "tests/common/security/test_certificates.h"

#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/nonce.h"

namespace lodestone {
namespace {

std::shared_ptr<EVP_PKEY> MakeKey() {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  LODESTONE_CHECK(key != nullptr);
  return {key, EVP_PKEY_free};
}

// What `write` writes to memory.
template <typename Write>
std::string Text(Write write) {
  const std::unique_ptr<BIO, int (*)(BIO*)> bio(BIO_new(BIO_s_mem()), BIO_free);
  LODESTONE_CHECK(write(bio.get()) == 1);
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(bytes));
}

std::string PemOf(X509* certificate) {
  return Text([certificate](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

void AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  LODESTONE_CHECK(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// A certificate of `key` without extensions and signature.
std::shared_ptr<X509> Begin(const TestAuthority::Subject& subject, EVP_PKEY* key) {
  const std::shared_ptr<X509> certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), X509_VERSION_3);
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), DrawNonce() >> 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), subject.begins_in_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), subject.ends_in_s);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(subject.common_name.c_str()), -1, -1, 0);
  return certificate;
}

}  // namespace

TestAuthority::TestAuthority(const std::string& name) : key_(MakeKey()) {
  certificate_ = Begin({.common_name = name}, key_.get());
  X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
  AddExtension(certificate_.get(), certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate_.get(), certificate_.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  LODESTONE_CHECK(X509_sign(certificate_.get(), key_.get(), EVP_sha256()) > 0);
}

std::string TestAuthority::pem() const { return PemOf(certificate_.get()); }

TestAuthority::Issued TestAuthority::Issue(const Subject& subject) const {
  const std::shared_ptr<EVP_PKEY> key = MakeKey();
  const std::shared_ptr<X509> certificate = Begin(subject, key.get());
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate_.get()));
  std::vector<std::string> names;
  for (const std::string& name : subject.dns_names) names.push_back(absl::StrCat("DNS:", name));
  for (const std::string& address : subject.addresses) names.push_back(absl::StrCat("IP:", address));
  AddExtension(certificate.get(), certificate_.get(), NID_ext_key_usage, "serverAuth,clientAuth");
  if (!names.empty()) {
    AddExtension(certificate.get(), certificate_.get(), NID_subject_alt_name, absl::StrJoin(names, ","));
  }
  LODESTONE_CHECK(X509_sign(certificate.get(), key_.get(), EVP_sha256()) > 0);
  return {PemOf(certificate.get()), Text([&](BIO* bio) {
            return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

void PutFile(const std::string& path, const std::string& content) {
  const std::string temporary = path + ".new";
  std::ofstream(temporary, std::ios::binary) << content;
  LODESTONE_CHECK(chmod(temporary.c_str(), 0600) == 0);
  LODESTONE_CHECK(std::rename(temporary.c_str(), path.c_str()) == 0);
}

void PointTo(const std::string& link, const std::string& target) {
  const std::string temporary = link + ".new";
  LODESTONE_CHECK(symlink(target.c_str(), temporary.c_str()) == 0);
  LODESTONE_CHECK(std::rename(temporary.c_str(), link.c_str()) == 0);
}

std::string MakeTestFolder() {
  std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/security_XXXXXX");
  LODESTONE_CHECK(mkdtemp(path.data()) != nullptr);
  return path;
}

}  // namespace lodestone
