#include "server/auth/identities.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// SHA-256 of a token as the file has it.
std::string Hex(const std::string& token) {
  const Digest digest = DigestOf(token);
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

std::shared_ptr<const Identities> Parse(const std::string& text) {
  auto identities = Identities::Parse(text, "identities.yaml", /*client_certificates=*/true);
  EXPECT_TRUE(identities.ok()) << identities.status();
  return identities.ok() ? *identities : nullptr;
}

std::string ErrorOf(const std::string& text, bool client_certificates = true) {
  const auto identities = Identities::Parse(text, "identities.yaml", client_certificates);
  EXPECT_EQ(identities.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(identities.status().message());
}

// An identity, with more lines.
std::string One(const std::string& more) {
  return absl::StrCat("identities:\n  - name: alice\n    token_sha256: ", Hex("a"), "\n", more);
}

TEST(Identities, TheDigestIsTheOneThatSha256sumPrints) {
  EXPECT_EQ(Hex("secret"), "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b");
}

TEST(Identities, BytesHaveUnits) {
  const auto identities =
      Parse(One("    role: worker\n    push_bytes_per_second_max: 20MiB\n    memory_max_bytes: 2GiB\n"));
  ASSERT_NE(identities, nullptr);
  EXPECT_EQ(identities->all()[0].push_bytes_per_second_max(), 20u << 20);
  EXPECT_EQ(identities->all()[0].memory_max_bytes(), 2ull << 30);
}

TEST(Identities, AreFoundByTokenAndByCertificate) {
  const auto identities = Parse(absl::StrCat(R"(identities:
  - {name: alice, token_sha256: )",
                                             Hex("token of alice"), R"(, role: worker}
  - {name: bob, certificate_name: bob.example, role: observer}
  - {name: carol, token_sha256: )",
                                             absl::AsciiStrToUpper(Hex("token of carol")),
                                             R"(, certificate_name: carol, role: admin}
)"));
  ASSERT_NE(identities, nullptr);
  ASSERT_EQ(identities->all().size(), 3);
  EXPECT_EQ(identities->ByToken(DigestOf("token of alice")), 0);
  EXPECT_EQ(identities->ByToken(DigestOf("token of carol")), 2);
  EXPECT_EQ(identities->ByToken(DigestOf("token of bob")), -1);
  EXPECT_EQ(identities->ByToken(DigestOf("")), -1);
  EXPECT_EQ(identities->ByToken(Digest{}), -1) << "bob has no token, which is not the token of zeros";
  EXPECT_EQ(identities->ByCertificate({"x", "bob.example"}), 1);
  EXPECT_EQ(identities->ByCertificate({"carol", "carol"}), 2);
  EXPECT_EQ(identities->ByCertificate({"bob"}), -1);
  EXPECT_EQ(identities->ByCertificate({}), -1);
  EXPECT_EQ(identities->ByCertificate({"carol", "bob.example"}), -1) << "they are two";
  EXPECT_EQ(identities->all()[0].role(), v1::Identity::WORKER);
}

TEST(Identities, WithoutARoleOneMayDoNothing) { EXPECT_EQ(Parse(One(""))->all()[0].role(), v1::Identity::NONE); }

TEST(Identities, MistakesAreToldWithTheirPlace) {
  EXPECT_THAT(ErrorOf(One("    rolle: worker\n")),
              StartsWith("identities.yaml:4:5: identities[0].rolle: unknown field (did you mean `role`?)"));
  EXPECT_THAT(ErrorOf(One("    role: boss\n")), HasSubstr("identities.yaml:4:11: identities[0].role: unknown value"));
  EXPECT_THAT(ErrorOf("identities: []"), HasSubstr("identities: is empty"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("is empty"));
  EXPECT_THAT(ErrorOf("identities: [{name: x, role: worker}]"),
              HasSubstr("identities.yaml:1:14: identities[0]: needs token_sha256 or certificate_name"));
  EXPECT_THAT(ErrorOf("identities: [{certificate_name: x}]"),
              HasSubstr("identities[0].name: must have 1 to 200 bytes"));
  EXPECT_THAT(ErrorOf("identities: [{name: x, token_sha256: abc}]"),
              HasSubstr("identities[0].token_sha256: is no SHA-256: 64 hexadecimal digits"));
  EXPECT_THAT(ErrorOf(absl::StrCat("identities: [{name: x, token_sha256: ", Hex(""), "}]")),
              HasSubstr("is that of an empty token"));
  EXPECT_THAT(ErrorOf("identities: [{name: x, certificate_name: x}]", /*client_certificates=*/false),
              HasSubstr("identities[0].certificate_name: needs security.client_certificates"));
}

TEST(Identities, NoTwoMayShareNameTokenOrCertificate) {
  EXPECT_THAT(ErrorOf("identities: [{name: x, certificate_name: a}, {name: x, certificate_name: b}]"),
              HasSubstr("identities[1].name: is also that of identities[0].name"));
  EXPECT_THAT(ErrorOf("identities: [{name: x, certificate_name: a}, {name: y, certificate_name: a}]"),
              HasSubstr("identities[1].certificate_name: is also that of identities[0].certificate_name"));
  EXPECT_THAT(ErrorOf(absl::StrCat("identities: [{name: x, token_sha256: ", Hex("t"),
                                   "}, {name: y, token_sha256: ", absl::AsciiStrToUpper(Hex("t")), "}]")),
              HasSubstr("identities[1].token_sha256: is also that of identities[0].token_sha256"));
}

TEST(Identities, RightsThatDoNotGoWithTheRoleAreMistakes) {
  EXPECT_THAT(ErrorOf(One("    role: admin\n    tables_write: [a]\n")), HasSubstr("admin may do everything"));
  EXPECT_THAT(ErrorOf(One("    role: observer\n    tables_write: [a]\n")), HasSubstr("observer pushes nothing"));
  EXPECT_THAT(ErrorOf(One("    role: observer\n    pushes_per_second_max: 1\n")), HasSubstr("observer pushes nothing"));
  EXPECT_THAT(ErrorOf(One("    rows_max: 18446744073709551615\n    memory_max_bytes: 1\n")),
              HasSubstr("none pushes nothing"));
  EXPECT_THAT(ErrorOf(One("    role: worker\n    tables_write: ['*b']\n")),
              HasSubstr("tables_write[0]: is a table's name"));
  EXPECT_THAT(ErrorOf(One("    role: worker\n    tables_read: [a, '']\n")),
              HasSubstr("tables_read[1]: is a table's name"));
}

TEST(Identities, AStarAtTheEndStandsForAnyRest) {
  v1::Identity identity;
  for (const char* pattern : {"mlp/*", "bias", "*"}) {
    identity.clear_tables_read();
    identity.add_tables_read(pattern);
    const auto matches = [&](const char* name) { return MatchesAny(identity.tables_read(), name); };
    EXPECT_EQ(matches("bias"), std::string(pattern) != "mlp/*") << pattern;
    EXPECT_EQ(matches("mlp/0/weight"), std::string(pattern) != "bias") << pattern;
    EXPECT_EQ(matches("mlp"), std::string(pattern) == "*") << pattern;
    EXPECT_EQ(matches("biases"), std::string(pattern) == "*") << pattern;
  }
  identity.clear_tables_read();
  EXPECT_FALSE(MatchesAny(identity.tables_read(), "bias")) << "nothing matches nothing";
}

}  // namespace
}  // namespace lodestone::server
