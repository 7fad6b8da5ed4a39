// configs/secure.yaml and configs/identities.yaml fit together, and say what their comments say.
#include "server/auth/security.h"

#include <map>
#include <string>

#include "common/config/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/auth/identities.h"
#include "tests/configs/deployment.h"

namespace lodestone {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;

TEST(SecureConfig, NobodyWhoIsUnknownComesIn) {
  const absl::StatusOr<v1::Config> config = LoadConfig("configs/secure.yaml");
  ASSERT_TRUE(config.ok()) << config.status();
  const v1::SecurityConfig& security = config->security();
  EXPECT_TRUE(security.client_certificates());
  EXPECT_EQ(security.open(), v1::SecurityConfig::REFUSE);
  EXPECT_FALSE(server::IsOpen(*config));
  EXPECT_FALSE(security.audit_log().empty());
  v1::Config bare = *config;
  bare.mutable_security()->clear_client_certificates();
  bare.mutable_security()->clear_identities();
  EXPECT_TRUE(server::IsOpen(bare));
}

TEST(SecureConfig, ItsIdentitiesAreReadAndHaveTheirRoles) {
  const std::string text = ReadProjectFile("configs/identities.yaml");
  const auto identities = server::Identities::Parse(text, "configs/identities.yaml", /*client_certificates=*/true);
  ASSERT_TRUE(identities.ok()) << identities.status();
  std::map<std::string, v1::Identity> by_name;
  for (const v1::Identity& identity : (*identities)->all()) by_name[identity.name()] = identity;
  EXPECT_EQ(by_name["ps"].role(), v1::Identity::ADMIN);
  EXPECT_EQ(by_name["operator"].role(), v1::Identity::ADMIN);
  EXPECT_EQ(by_name["worker"].role(), v1::Identity::WORKER);
  EXPECT_EQ(by_name["dashboard"].role(), v1::Identity::OBSERVER);
  EXPECT_THAT(by_name["guest"].tables_write(), ElementsAre("guest/*"));
  EXPECT_EQ(by_name["guest"].memory_max_bytes(), uint64_t{2} << 30);
  // The names are those that the other file gives to tools/certificates.
  const std::string secure = ReadProjectFile("configs/secure.yaml");
  for (const auto& [name, identity] : by_name) {
    if (identity.certificate_name().empty()) continue;
    EXPECT_THAT(secure, ContainsRegex("tools/certificates pki .*[ ,]" + identity.certificate_name()));
  }
}

// An example that is used as it stands must not admit its readers.
TEST(SecureConfig, TheTokensOfTheExampleAreNobodys) {
  const std::string text = ReadProjectFile("configs/identities.yaml");
  const auto identities = server::Identities::Parse(text, "configs/identities.yaml", /*client_certificates=*/true);
  ASSERT_TRUE(identities.ok()) << identities.status();
  for (const char* token : {"", "token", "TOKEN", "secret", "password", "changeme", "guest", "guest-token", "dashboard",
                            "dashboard-token", "lodestone", "test", "example"}) {
    EXPECT_EQ((*identities)->ByToken(server::DigestOf(token)), -1) << token;
  }
}

}  // namespace
}  // namespace lodestone
