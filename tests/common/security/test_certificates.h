// A certificate authority for tests, with small fast keys.
//
// Not thread-safe.
#pragma once

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lodestone {

class TestAuthority {
 public:
  explicit TestAuthority(const std::string& name);

  // Its own certificate, as PEM.
  std::string pem() const;

  struct Subject {
    std::string common_name;
    std::vector<std::string> dns_names = {"localhost"};
    std::vector<std::string> addresses = {"127.0.0.1"};
    int64_t begins_in_s = -3600;
    int64_t ends_in_s = 365 * 24 * 3600;
  };
  struct Issued {
    std::string certificate;  // PEM.
    std::string key;          // PEM.
  };
  Issued Issue(const Subject& subject) const;

 private:
  std::shared_ptr<EVP_PKEY> key_;
  std::shared_ptr<X509> certificate_;
};

// Puts a file in place, at once; nobody but its owner may read it.
void PutFile(const std::string& path, const std::string& content);

// Makes `link` lead to the folder `target` from now on, at once.
void PointTo(const std::string& link, const std::string& target);

// A folder of the test's own.
std::string MakeTestFolder();

}  // namespace lodestone
