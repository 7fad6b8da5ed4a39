#include "server/auth/security.h"

#include <cstdio>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/security/test_certificates.h"
#include "tests/server/auth/identities_file.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SecurityTest : public ::testing::Test {
 protected:
  std::string WarningOf(const v1::Config& config) {
    const auto security = Security::Open(config);
    EXPECT_TRUE(security.ok()) << security.status();
    if (!security.ok()) return "";
    v1::StatusResponse status;
    (*security)->FillStatus(&status);
    return status.server().security_warning();
  }
  void PutIdentities(const std::string& lines) { PutFile(identities_, "identities:\n" + lines); }
  v1::Config ConfigWithIdentities() {
    v1::Config config;
    config.mutable_security()->set_identities(identities_);
    config.mutable_security()->set_reload_ms(3'600'000);  // The test says when.
    return config;
  }
  static IncomingCall CallBy(const std::string& name) {
    IncomingCall call;
    call.method = "/lodestone.v1.Admin/Status";
    call.authorization.push_back(absl::StrCat("Bearer ", name, "-token"));
    return call;
  }

  const std::string folder_ = MakeTestFolder();
  const std::string identities_ = folder_ + "/identities.yaml";
};

TEST_F(SecurityTest, OnLoopbackNothingIsToBeSaid) {
  v1::Config config;
  config.mutable_security()->set_open(v1::SecurityConfig::REFUSE);
  for (const char* listen : {"127.0.0.1:0", "localhost:7000", "[::1]:0"}) {
    config.mutable_server()->set_listen(listen);
    config.mutable_server()->set_http_listen(listen);
    EXPECT_THAT(WarningOf(config), IsEmpty()) << listen;
  }
}

TEST_F(SecurityTest, BeyondLoopbackOpennessIsToldRefusedOrAllowed) {
  v1::Config config;
  config.mutable_server()->set_listen("0.0.0.0:7000");
  EXPECT_THAT(WarningOf(config), HasSubstr("open to any caller that can connect to server.listen 0.0.0.0:7000: set "
                                           "security.identities"));
  config.mutable_security()->set_open(v1::SecurityConfig::REFUSE);
  const absl::Status refused = Security::Open(config).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            "security.open is refuse, and this ps would be open to any caller that can connect to server.listen "
            "0.0.0.0:7000: set security.identities (or security.client_certificates), or listen on loopback; or set "
            "security.open: warn");
  config.mutable_security()->set_open(v1::SecurityConfig::ALLOW);
  EXPECT_THAT(WarningOf(config), IsEmpty());
}

TEST_F(SecurityTest, TheHttpPortCountsAsWell) {
  v1::Config config;
  config.mutable_server()->set_http_listen("ps0.example:9000");
  config.mutable_security()->set_open(v1::SecurityConfig::REFUSE);
  EXPECT_THAT(std::string(Security::Open(config).status().message()), HasSubstr("server.http_listen ps0.example:9000"));
}

TEST_F(SecurityTest, WhoAsksWhoCallsIsNotOpenButTokensWithoutTlsAreToldOf) {
  PutIdentities(IdentityLine("adam", ", role: admin"));
  v1::Config config = ConfigWithIdentities();
  config.mutable_server()->set_listen("0.0.0.0:7000");
  config.mutable_security()->set_open(v1::SecurityConfig::REFUSE);
  EXPECT_THAT(WarningOf(config), HasSubstr("without encryption at server.listen 0.0.0.0:7000"));
  const TestAuthority authority("ca");
  const TestAuthority::Issued issued = authority.Issue({.common_name = "ps", .ends_in_s = 5 * 24 * 3600 + 60});
  PutFile(folder_ + "/c", issued.certificate);
  PutFile(folder_ + "/k", issued.key);
  PutFile(folder_ + "/a", authority.pem());
  config.mutable_security()->set_certificate(folder_ + "/c");
  config.mutable_security()->set_key(folder_ + "/k");
  config.mutable_security()->set_authorities(folder_ + "/a");
  EXPECT_THAT(WarningOf(config), HasSubstr("the certificate expires in 5 days"));
  config.mutable_security()->clear_identities();
  EXPECT_EQ(Security::Open(config).status().code(), absl::StatusCode::kFailedPrecondition)
      << "TLS asks nobody who he is";
  config.mutable_security()->set_client_certificates(true);
  EXPECT_TRUE(Security::Open(config).ok());
}

TEST_F(SecurityTest, AFileThatCannotBeUsedIsAnErrorAtTheStart) {
  EXPECT_THAT(std::string(Security::Open(ConfigWithIdentities()).status().message()),
              HasSubstr(absl::StrCat("security.identities: ", identities_, ": open")));
  PutIdentities("  - nonsense\n");
  EXPECT_THAT(std::string(Security::Open(ConfigWithIdentities()).status().message()),
              HasSubstr(absl::StrCat(identities_, ":2:5: identities[0]: expected a mapping")));
  v1::Config config;
  config.mutable_security()->set_audit_log(folder_ + "/no/such/folder");
  EXPECT_THAT(std::string(Security::Open(config).status().message()), HasSubstr("security.audit_log: "));
}

TEST_F(SecurityTest, IdentitiesAreReadAgainAndABrokenFileDoesNotCount) {
  PutIdentities(IdentityLine("adam", ", role: admin"));
  const auto opened = Security::Open(ConfigWithIdentities());
  ASSERT_TRUE(opened.ok()) << opened.status();
  Security& security = **opened;
  const auto warning = [&security] {
    v1::StatusResponse status;
    security.FillStatus(&status);
    return status.server().security_warning();
  };
  const auto may = [&security](const std::string& name) { return security.access()->Admit(CallBy(name)).ok(); };
  const auto reload = [&security] {  // Two readings agree.
    security.Reload();
    security.Reload();
  };
  EXPECT_TRUE(may("adam"));
  EXPECT_FALSE(may("eve"));

  PutIdentities(IdentityLine("adam", ", role: admin") + IdentityLine("eve", ", role: observer"));
  EXPECT_FALSE(may("eve")) << "not before it is read";
  reload();
  EXPECT_TRUE(may("eve"));

  PutIdentities(IdentityLine("eve", ", role: boss"));
  reload();
  EXPECT_TRUE(may("adam"));
  EXPECT_THAT(warning(), HasSubstr(absl::StrCat(identities_, ":2:")));
  EXPECT_THAT(warning(), HasSubstr("unknown value"));
  security.Reload();
  EXPECT_THAT(warning(), HasSubstr("unknown value")) << "it is still broken";
  ASSERT_EQ(std::remove(identities_.c_str()), 0);
  security.Reload();
  EXPECT_TRUE(may("adam"));
  EXPECT_THAT(warning(), HasSubstr("open"));

  PutIdentities(IdentityLine("eve", ", role: observer"));
  reload();
  EXPECT_FALSE(may("adam"));
  EXPECT_TRUE(may("eve"));
  EXPECT_THAT(warning(), IsEmpty());
}

// Regression: a part of the file that was right as it stood was used, and gave an identity all tables for the moment,
// because its limits came after its role.
TEST_F(SecurityTest, AFileThatIsBeingWrittenIsNotUsed) {
  const std::string adam = IdentityLine("adam", ", role: admin");
  const std::string role =
      absl::StrCat("  - name: wanda\n    token_sha256: ", Sha256Hex("wanda-token"), "\n    role: worker\n");
  const std::string limits = "    tables_write: [open]\n";
  PutIdentities(adam);
  const auto opened = Security::Open(ConfigWithIdentities());
  ASSERT_TRUE(opened.ok()) << opened.status();
  Security& security = **opened;
  const auto is_known = [&security] { return security.access()->Identify(CallBy("wanda")).ok(); };
  PutIdentities(adam + role);
  security.Reload();
  EXPECT_FALSE(is_known());
  PutIdentities(adam + role + limits);
  security.Reload();
  EXPECT_FALSE(is_known()) << "it may go on";
  security.Reload();
  EXPECT_TRUE(is_known());

  PutIdentities(adam + role + "    tables_write: [open]");
  security.Reload();
  security.Reload();
  v1::StatusResponse status;
  security.FillStatus(&status);
  EXPECT_THAT(status.server().security_warning(),
              HasSubstr(absl::StrCat(identities_, ":6: the last line does not end")));
}

TEST_F(SecurityTest, AFileThatComesBackAsItWasIsUsed) {
  const std::string lines = IdentityLine("adam", ", role: admin");
  PutIdentities(lines);
  const auto opened = Security::Open(ConfigWithIdentities());
  ASSERT_TRUE(opened.ok()) << opened.status();
  ASSERT_EQ(std::remove(identities_.c_str()), 0);
  (*opened)->Reload();
  PutIdentities(lines);
  (*opened)->Reload();
  v1::StatusResponse status;
  (*opened)->FillStatus(&status);
  EXPECT_THAT(status.server().security_warning(), IsEmpty());
}

}  // namespace
}  // namespace lodestone::server
