// The file of security.identities, read and checked: who may call a ps, and by what each is known.
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
  // Reads `text`; `name` stands for the file in errors, all of which are told together: "FILE:LINE:COLUMN: PATH: what
  // is wrong", one a line, as INVALID_ARGUMENT. `client_certificates`: as configured; without, a certificate's name
  // means nothing.
  static absl::StatusOr<std::shared_ptr<const Identities>> Parse(absl::string_view text, absl::string_view name,
                                                                 bool client_certificates);

  const std::vector<v1::Identity>& all() const { return all_; }

  // Index in all() of whose token has this digest; -1: nobody's. How long it takes tells nothing of a token.
  int ByToken(const Digest& digest) const;
  // The same of a certificate with these names; -1 too if they are those of several.
  int ByCertificate(absl::Span<const std::string> names) const;

 private:
  Identities() = default;

  std::vector<v1::Identity> all_;
  std::vector<Digest> digests_;                                // Beside all_; zeros where there is no token.
  absl::flat_hash_map<uint64_t, std::vector<int>> by_digest_;  // By its first eight bytes.
  absl::flat_hash_map<std::string, int> by_certificate_;       // By name.
};

// Whether one of `patterns`, each a name or with `*` for any rest at its end, is that of `name`.
bool MatchesAny(const google::protobuf::RepeatedPtrField<std::string>& patterns, absl::string_view name);

}  // namespace lodestone::server
