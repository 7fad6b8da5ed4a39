// Certificates and keys in PEM files: checked before they are used, and read again when they change.
//
// Thread-safe.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/io/memory_file.h"
#include "proto/config.pb.h"

namespace lodestone {

// The contents of the files of a SecurityConfig; null and empty for a file that is not configured.
struct CertificateSet {
  // As they were read.
  std::string certificate_pem;
  std::string key_pem;
  std::string authorities_pem;

  std::shared_ptr<X509> certificate;
  std::vector<std::shared_ptr<X509>> chain;  // The intermediate certificates of the file.
  std::shared_ptr<EVP_PKEY> key;
  std::shared_ptr<X509_STORE> authorities;
  int64_t expires_s = 0;  // The certificate, in seconds since 1970.
};

// Reads the files. `section` is the section of the configuration that names them, for errors. INVALID_ARGUMENT, naming
// field and file, if one holds nothing of its kind, if the key is not the certificate's, or if the certificate has
// expired or is not valid yet; NOT_FOUND and so on.
absl::StatusOr<std::shared_ptr<const CertificateSet>> ReadCertificates(const v1::SecurityConfig& security,
                                                                       absl::string_view section = "security");

// The names of a certificate's subject: its common name and DNS names.
std::vector<std::string> NamesOf(const X509& certificate);

// The newest of a configuration's certificates.
class CertificateFiles {
 public:
  // Fails as ReadCertificates. `time` must outlive this.
  static absl::StatusOr<std::shared_ptr<CertificateFiles>> Open(const v1::SecurityConfig& security,
                                                                const TimeSource* time,
                                                                absl::string_view section = "security");

  // The newest usable certificates. Reads the files again after security.reload_ms; if they cannot be used, logs that
  // and keeps the previous ones.
  std::shared_ptr<const CertificateSet> Newest();

  // Paths of copies of the newest usable files, for gRPC, which does not check what it reads; empty for a file that is
  // not configured.
  const std::string& certificate_path() const { return certificate_path_; }
  const std::string& key_path() const { return key_path_; }
  const std::string& authorities_path() const { return authorities_path_; }

  // A warning for the operator: why the files could not be read again, or that the certificate expires soon; or empty.
  std::string Warning();

 private:
  CertificateFiles(const v1::SecurityConfig& security, const TimeSource* time, absl::string_view section)
      : security_(security), section_(section), time_(time) {}

  // Makes `set` the newest.
  absl::Status Use(std::shared_ptr<const CertificateSet> set) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after Open.
  const v1::SecurityConfig security_;
  const std::string section_;
  const TimeSource* const time_;
  std::string certificate_path_, key_path_, authorities_path_;

  Mutex mu_;
  std::shared_ptr<const CertificateSet> set_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<MemoryFile> certificate_copy_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<MemoryFile> key_copy_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<MemoryFile> authorities_copy_ ABSL_GUARDED_BY(mu_);
  int64_t read_ms_ ABSL_GUARDED_BY(mu_) = 0;
  std::string problem_ ABSL_GUARDED_BY(mu_);  // Of the last reading.
};

}  // namespace lodestone
