#include "server/auth/identities.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/config/yaml_reader.h"

namespace lodestone::server {
namespace {

constexpr size_t kNameBytesMax = 200;

uint64_t FirstBytes(const Digest& digest) {
  uint64_t first;
  std::memcpy(&first, digest.data(), sizeof(first));
  return first;
}

// The checks of a parsed file; adds their errors to the reader's.
class Checker {
 public:
  Checker(YamlReader* reader, bool client_certificates) : reader_(reader), client_certificates_(client_certificates) {}

  void Check(const v1::IdentitiesConfig& config) {
    if (config.identities().empty())
      Error("identities", "is empty, so that every call would be refused: add an identity");
    if (config.identities_size() > limits::kIdentitiesMax) {
      Error("identities",
            absl::StrCat("has ", config.identities_size(), " entries, and ", limits::kIdentitiesMax, " are the limit"));
    }
    for (int i = 0; i < config.identities_size(); ++i) {
      CheckOne(config.identities(i), absl::StrCat("identities[", i, "]"));
    }
  }

 private:
  void Error(const std::string& path, const std::string& what) { reader_->AddError(path, what); }

  // Checks a value that no two identities may share.
  void CheckUnique(std::map<std::string, std::string>* known, const std::string& value, const std::string& path) {
    const auto [first, is_new] = known->emplace(value, path);
    if (!is_new) Error(path, absl::StrCat("is also that of ", first->second, "; it must be unique"));
  }

  void CheckOne(const v1::Identity& identity, const std::string& path) {
    if (identity.name().empty() || identity.name().size() > kNameBytesMax) {
      Error(path + ".name", absl::StrCat("must have 1 to ", kNameBytesMax, " bytes"));
    } else {
      CheckUnique(&names_, identity.name(), path + ".name");
    }
    if (identity.token_sha256().empty() && identity.certificate_name().empty()) {
      Error(path, "needs token_sha256 or certificate_name: no caller could prove to be it");
    }
    if (!identity.token_sha256().empty()) CheckDigest(identity.token_sha256(), path + ".token_sha256");
    if (!identity.certificate_name().empty()) {
      CheckUnique(&certificates_, identity.certificate_name(), path + ".certificate_name");
      if (!client_certificates_) Error(path + ".certificate_name", "needs security.client_certificates");
    }
    CheckRights(identity, path);
  }

  void CheckDigest(const std::string& text, const std::string& path) {
    bool good = text.size() == 2 * sizeof(Digest);
    for (const char c : text) good = good && absl::ascii_isxdigit(static_cast<unsigned char>(c));
    if (!good) {
      return Error(path, "is no SHA-256: 64 hexadecimal digits, as of `printf %s TOKEN | sha256sum`");
    }
    const std::string digest = absl::AsciiStrToLower(text);
    if (digest ==
        absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(DigestOf("").data()), sizeof(Digest)))) {
      return Error(path, "is that of an empty token");
    }
    CheckUnique(&digests_, digest, path);
  }

  void CheckRights(const v1::Identity& identity, const std::string& path) {
    CheckPatterns(identity.tables_write(), path + ".tables_write");
    CheckPatterns(identity.tables_read(), path + ".tables_read");
    const bool quotas = identity.push_bytes_per_second_max() > 0 || identity.pushes_per_second_max() > 0 ||
                        identity.rows_max() > 0 || identity.memory_max_bytes() > 0;
    if (identity.role() == v1::Identity::ADMIN && identity.tables_write_size() + identity.tables_read_size() > 0) {
      Error(path + ".role", "admin may do everything with every table: tables_write and tables_read do not go with it");
    }
    if (identity.role() < v1::Identity::WORKER && (quotas || !identity.tables_write().empty())) {
      Error(path + ".role", absl::StrCat(absl::AsciiStrToLower(v1::Identity::Role_Name(identity.role())),
                                         " pushes nothing: tables_write and quotas do not go with it"));
    }
  }

  void CheckPatterns(const google::protobuf::RepeatedPtrField<std::string>& patterns, const std::string& path) {
    for (int i = 0; i < patterns.size(); ++i) {
      const size_t star = patterns[i].find('*');
      const bool good = !patterns[i].empty() && (star == std::string::npos || star + 1 == patterns[i].size());
      if (!good) Error(absl::StrCat(path, "[", i, "]"), "is a table's name, in which `*` may stand at the end only");
    }
  }

  YamlReader* const reader_;
  const bool client_certificates_;
  std::map<std::string, std::string> names_, digests_, certificates_;  // Where each was first.
};

}  // namespace

Digest DigestOf(absl::string_view text) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data());
  return digest;
}

absl::StatusOr<std::shared_ptr<const Identities>> Identities::Parse(absl::string_view text, absl::string_view name,
                                                                    bool client_certificates) {
  v1::IdentitiesConfig config;
  YamlReader reader(&config);
  reader.Read({text.data(), text.size()}, {name.data(), name.size()});
  // Fields that could not be read are missing, and would give further, misleading errors.
  if (reader.status().ok()) Checker(&reader, client_certificates).Check(config);
  if (absl::Status status = reader.status(); !status.ok()) return status;

  std::shared_ptr<Identities> identities(new Identities);
  for (const v1::Identity& identity : config.identities()) {
    const int index = static_cast<int>(identities->all_.size());
    Digest digest{};
    if (!identity.token_sha256().empty()) {
      const std::string bytes = absl::HexStringToBytes(identity.token_sha256());
      std::memcpy(digest.data(), bytes.data(), digest.size());
      identities->by_digest_[FirstBytes(digest)].push_back(index);
    }
    if (!identity.certificate_name().empty()) identities->by_certificate_.emplace(identity.certificate_name(), index);
    identities->digests_.push_back(digest);
    identities->all_.push_back(identity);
  }
  return identities;
}

int Identities::ByToken(const Digest& digest) const {
  // The time of the look-up depends on the digest's first bytes, which do not lead back to a token; the rest is
  // compared in constant time.
  const auto bucket = by_digest_.find(FirstBytes(digest));
  int found = -1;
  if (bucket == by_digest_.end()) return found;
  for (const int index : bucket->second) {
    if (CRYPTO_memcmp(digests_[index].data(), digest.data(), digest.size()) == 0) found = index;
  }
  return found;
}

int Identities::ByCertificate(absl::Span<const std::string> names) const {
  int found = -1;
  for (const std::string& name : names) {
    const auto one = by_certificate_.find(name);
    if (one == by_certificate_.end()) continue;
    if (found >= 0 && found != one->second) return -1;
    found = one->second;
  }
  return found;
}

bool MatchesAny(const google::protobuf::RepeatedPtrField<std::string>& patterns, absl::string_view name) {
  for (const std::string& pattern : patterns) {
    if (pattern == name) return true;
    if (absl::EndsWith(pattern, "*") &&
        absl::StartsWith(name, absl::string_view(pattern).substr(0, pattern.size() - 1))) {
      return true;
    }
  }
  return false;
}

}  // namespace lodestone::server
