#include "common/security/certificates.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/security/secret_file.h"
#include "common/telemetry/log.h"

namespace lodestone {
namespace {

constexpr int64_t kDayS = 24 * 3600;
constexpr int64_t kExpiresSoonS = 14 * kDayS;

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using Bio = std::unique_ptr<BIO, FreeBio>;

Bio BioOf(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

// Encrypted keys are refused: a server has no terminal to ask for a password.
int NoPassword(char*, int, int, void*) { return 0; }

// The text of OpenSSL's oldest error; clears its errors.
std::string LastError() {
  char text[256] = "";
  const auto code = ERR_peek_last_error();
  ERR_clear_error();
  if (code == 0) return "";
  ERR_error_string_n(code, text, sizeof(text));
  return absl::StrCat(" (", text, ")");
}

// All certificates of a PEM text, in its order.
std::vector<std::shared_ptr<X509>> CertificatesIn(const std::string& text) {
  std::vector<std::shared_ptr<X509>> certificates;
  const Bio bio = BioOf(text);
  while (X509* const one = PEM_read_bio_X509(bio.get(), nullptr, NoPassword, nullptr)) {
    certificates.emplace_back(one, X509_free);
  }
  return certificates;
}

// Seconds since 1970.
int64_t SecondsOf(const ASN1_TIME* time) {
  tm broken_down{};
  return ASN1_TIME_to_tm(time, &broken_down) == 1 ? timegm(&broken_down) : 0;
}

std::string DateOf(int64_t seconds) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixSeconds(seconds), absl::UTCTimeZone());
}

// The files of one section of the configuration; errors name its fields.
class CertificateReader {
 public:
  CertificateReader(const v1::SecurityConfig& files, absl::string_view section) : files_(files), section_(section) {}

  absl::Status ReadOwn(CertificateSet* set) const;
  absl::Status ReadAuthorities(CertificateSet* set) const;

 private:
  absl::StatusOr<std::string> Read(const char* field, const std::string& path) const {
    auto text = ReadSecretFile(path);
    if (!text.ok()) return Annotate(text.status(), absl::StrCat(section_, ".", field));
    return text;
  }
  absl::Status Invalid(const char* field, const std::string& path, const std::string& what) const {
    return absl::InvalidArgumentError(absl::StrCat(section_, ".", field, ": ", path, ": ", what));
  }
  absl::Status CheckTimes(const X509& certificate) const;

  const v1::SecurityConfig& files_;
  const absl::string_view section_;
};

absl::Status CertificateReader::CheckTimes(const X509& certificate) const {
  const std::string& path = files_.certificate();
  const int64_t now_s = time(nullptr);
  const int64_t begins_s = SecondsOf(X509_get0_notBefore(&certificate));
  const int64_t ends_s = SecondsOf(X509_get0_notAfter(&certificate));
  if (now_s > ends_s) return Invalid("certificate", path, absl::StrCat("has expired, at ", DateOf(ends_s), " UTC"));
  if (now_s < begins_s)
    return Invalid("certificate", path, absl::StrCat("is not valid before ", DateOf(begins_s), " UTC"));
  return absl::OkStatus();
}

absl::Status CertificateReader::ReadOwn(CertificateSet* set) const {
  LODESTONE_ASSIGN_OR_RETURN(set->certificate_pem, Read("certificate", files_.certificate()));
  set->chain = CertificatesIn(set->certificate_pem);
  if (set->chain.empty())
    return Invalid("certificate", files_.certificate(), absl::StrCat("holds no certificate", LastError()));
  set->certificate = set->chain.front();
  set->chain.erase(set->chain.begin());
  LODESTONE_RETURN_IF_ERROR(CheckTimes(*set->certificate));
  set->expires_s = SecondsOf(X509_get0_notAfter(set->certificate.get()));

  LODESTONE_ASSIGN_OR_RETURN(set->key_pem, Read("key", files_.key()));
  set->key.reset(PEM_read_bio_PrivateKey(BioOf(set->key_pem).get(), nullptr, NoPassword, nullptr), EVP_PKEY_free);
  if (set->key == nullptr) {
    return Invalid("key", files_.key(),
                   absl::StrCat("holds no private key that can be read without a password", LastError()));
  }
  if (X509_check_private_key(set->certificate.get(), set->key.get()) != 1) {
    return Invalid("key", files_.key(), absl::StrCat("is not the key of ", files_.certificate(), LastError()));
  }
  return absl::OkStatus();
}

absl::Status CertificateReader::ReadAuthorities(CertificateSet* set) const {
  LODESTONE_ASSIGN_OR_RETURN(set->authorities_pem, Read("authorities", files_.authorities()));
  set->authorities.reset(X509_STORE_new(), X509_STORE_free);
  const std::vector<std::shared_ptr<X509>> certificates = CertificatesIn(set->authorities_pem);
  for (const auto& certificate : certificates) X509_STORE_add_cert(set->authorities.get(), certificate.get());
  if (!certificates.empty()) return absl::OkStatus();
  return Invalid("authorities", files_.authorities(), absl::StrCat("holds no certificate", LastError()));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CertificateSet>> ReadCertificates(const v1::SecurityConfig& security,
                                                                       absl::string_view section) {
  auto set = std::make_shared<CertificateSet>();
  const CertificateReader reader(security, section);
  if (!security.certificate().empty()) LODESTONE_RETURN_IF_ERROR(reader.ReadOwn(set.get()));
  if (!security.authorities().empty()) LODESTONE_RETURN_IF_ERROR(reader.ReadAuthorities(set.get()));
  ERR_clear_error();  // The end of a file counts as one.
  return set;
}

std::vector<std::string> NamesOf(const X509& certificate) {
  std::vector<std::string> names;
  const auto add = [&names](const ASN1_STRING* text) {
    unsigned char* utf8 = nullptr;
    const int bytes = ASN1_STRING_to_UTF8(&utf8, text);
    if (bytes > 0) names.emplace_back(reinterpret_cast<const char*>(utf8), bytes);
    OPENSSL_free(utf8);
  };
  const X509_NAME* const subject = X509_get_subject_name(&certificate);
  for (int i = -1; (i = X509_NAME_get_index_by_NID(subject, NID_commonName, i)) >= 0;) {
    add(X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, i)));
  }
  auto* const others =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(others); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(others, i);
    if (name->type == GEN_DNS) add(name->d.dNSName);
  }
  GENERAL_NAMES_free(others);
  return names;
}

absl::StatusOr<std::shared_ptr<CertificateFiles>> CertificateFiles::Open(const v1::SecurityConfig& security,
                                                                         const TimeSource* time,
                                                                         absl::string_view section) {
  LODESTONE_ASSIGN_OR_RETURN(std::shared_ptr<const CertificateSet> set, ReadCertificates(security, section));
  std::shared_ptr<CertificateFiles> files(new CertificateFiles(security, time, section));
  MutexLock lock(&files->mu_);
  LODESTONE_RETURN_IF_ERROR(files->Use(std::move(set)));
  const auto path_of = [](const auto& copy) { return copy == nullptr ? std::string() : copy->path(); };
  files->certificate_path_ = path_of(files->certificate_copy_);
  files->key_path_ = path_of(files->key_copy_);
  files->authorities_path_ = path_of(files->authorities_copy_);
  files->read_ms_ = time->NowMs();
  return files;
}

absl::Status CertificateFiles::Use(std::shared_ptr<const CertificateSet> set) {
  const auto copy = [](const std::string& pem, const std::string* before, std::unique_ptr<MemoryFile>* to) {
    if (pem.empty() || (before != nullptr && pem == *before)) return absl::OkStatus();
    if (*to != nullptr) return (*to)->Replace(pem);
    auto made = MemoryFile::Make(pem);
    if (made.ok()) *to = *std::move(made);
    return made.status();
  };
  const CertificateSet* const before = set_.get();
  // A reader between the two sees a key that does not match the certificate, and reads again a moment later.
  LODESTONE_RETURN_IF_ERROR(copy(set->key_pem, before ? &before->key_pem : nullptr, &key_copy_));
  LODESTONE_RETURN_IF_ERROR(
      copy(set->certificate_pem, before ? &before->certificate_pem : nullptr, &certificate_copy_));
  LODESTONE_RETURN_IF_ERROR(
      copy(set->authorities_pem, before ? &before->authorities_pem : nullptr, &authorities_copy_));
  set_ = std::move(set);
  return absl::OkStatus();
}

std::shared_ptr<const CertificateSet> CertificateFiles::Newest() {
  MutexLock lock(&mu_);
  const int64_t now_ms = time_->NowMs();
  if (now_ms - read_ms_ < security_.reload_ms()) return set_;
  read_ms_ = now_ms;
  auto fresh = ReadCertificates(security_, section_);
  const absl::Status used = fresh.ok() ? Use(*std::move(fresh)) : fresh.status();
  const std::string problem = used.ok() ? "" : std::string(used.message());
  if (!problem.empty() && problem != problem_) {
    LODESTONE_LOG(WARN, "security", "the new certificates cannot be used, the previous ones remain: {}", problem);
  }
  problem_ = problem;
  return set_;
}

std::string CertificateFiles::Warning() {
  const std::shared_ptr<const CertificateSet> set = Newest();
  {
    MutexLock lock(&mu_);
    if (!problem_.empty()) return problem_;
  }
  const int64_t left_s = set->expires_s - time(nullptr);
  if (set->certificate == nullptr || left_s > kExpiresSoonS) return "";
  if (left_s <= 0) return absl::StrCat("the certificate has expired, at ", DateOf(set->expires_s), " UTC");
  return absl::StrCat("the certificate expires in ", left_s / kDayS, " days, at ", DateOf(set->expires_s), " UTC");
}

}  // namespace lodestone
