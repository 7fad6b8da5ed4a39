// Identities for tests of what is done with them.
#pragma once

#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "server/auth/identities.h"

namespace lodestone::server {

// SHA-256 of a token as the file has it.
inline std::string Sha256Hex(const std::string& token) {
  const Digest digest = DigestOf(token);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

// An identity of the file called `name`, whose token is NAME-token; `more`: its other fields, ", role: worker".
inline std::string IdentityLine(const std::string& name, const std::string& more) {
  return absl::StrCat("  - {name: ", name, ", token_sha256: ", Sha256Hex(name + "-token"), more, "}\n");
}

inline std::shared_ptr<const Identities> IdentitiesOf(const std::string& lines) {
  auto identities = Identities::Parse("identities:\n" + lines, "identities.yaml", /*client_certificates=*/true);
  LODESTONE_CHECK(identities.ok());
  return *identities;
}

}  // namespace lodestone::server
