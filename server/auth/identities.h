// The identities of security.identities: the callers of a ps, and the token or certificate name of each.
//
// Immutable; share it by pointer.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/identities.pb.h"

namespace lodestone::server {

// A SHA-256.
using Digest = std::array<uint8_t, 32>;
Digest DigestOf(absl::string_view text);

class Identities {
 public:
  // Parses `text`, the content of the file `name`. INVALID_ARGUMENT lists all errors, one a line: "FILE:LINE:COLUMN:
  // PATH: what is wrong". `client_certificates`: as configured; without them a certificate_name is an error.
  static absl::StatusOr<std::shared_ptr<const Identities>> Parse(absl::string_view text, absl::string_view name,
                                                                 bool client_certificates);

  const std::vector<v1::Identity>& all() const { return all_; }

  // The index in all() of the identity whose token has this digest; -1: none. Its duration reveals nothing of a token.
  int ByToken(const Digest& digest) const;
  // The same for a certificate with these names; -1 also if they belong to several identities.
  int ByCertificate(absl::Span<const std::string> names) const;

 private:
  Identities() = default;

  std::vector<v1::Identity> all_;
  std::vector<Digest> digests_;                                // Beside all_; zeros where there is no token.
  absl::flat_hash_map<uint64_t, std::vector<int>> by_digest_;  // By its first eight bytes.
  absl::flat_hash_map<std::string, int> by_certificate_;       // By name.
};

// True if `name` matches one of `patterns`: names, or prefixes that end in `*`.
bool MatchesAny(const google::protobuf::RepeatedPtrField<std::string>& patterns, absl::string_view name);

}  // namespace lodestone::server
