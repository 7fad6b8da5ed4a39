// Fuzzes the reader of the file of identities: any text must end in identities that are found by what they show, or in
// an error that says what is wrong. To run it for a minute:
//   bazel build --config=asan //tests/fuzz:identities_fuzz
//   bazel-bin/tests/fuzz/identities_fuzz -max_total_time=60 -timeout=10 -max_len=4096 "$(mktemp -d)" \
//       tests/fuzz/identities_corpus
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/escaping.h"
#include "common/base/check.h"
#include "server/auth/identities.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lodestone;  // NOLINT: one function.
  if (size == 0) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto identities = server::Identities::Parse(text, "fuzz.yaml", /*client_certificates=*/(data[0] & 1) != 0);
  if (!identities.ok()) {
    LODESTONE_CHECK(!identities.status().message().empty());
    return 0;
  }
  const auto& all = (*identities)->all();
  LODESTONE_CHECK(!all.empty());
  for (size_t i = 0; i < all.size(); ++i) {
    if (!all[i].token_sha256().empty()) {
      server::Digest digest;
      const std::string bytes = absl::HexStringToBytes(all[i].token_sha256());
      LODESTONE_CHECK(bytes.size() == digest.size());
      std::memcpy(digest.data(), bytes.data(), digest.size());
      LODESTONE_CHECK((*identities)->ByToken(digest) == static_cast<int>(i));
    }
    if (!all[i].certificate_name().empty()) {
      LODESTONE_CHECK((*identities)->ByCertificate({all[i].certificate_name()}) == static_cast<int>(i));
    }
    server::MatchesAny(all[i].tables_write(), text);
  }
  return 0;
}
