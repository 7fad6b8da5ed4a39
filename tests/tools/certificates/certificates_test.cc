// What tools/certificates makes is what ps, worker and psctl take.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "common/security/credentials.h"
#include "common/security/secret_file.h"
#include "gmock/gmock.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "server/auth/identities.h"
#include "tests/common/security/test_certificates.h"
#include "tests/configs/deployment.h"

namespace lodestone {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;

class CertificatesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasProgram("openssl")) GTEST_SKIP() << "there is no openssl here";
  }
  std::string Run(const std::string& arguments, int expected_exit_code = 0) {
    int exit_code = 0;
    std::string output = RunShell(absl::StrCat("bash tools/certificates ", arguments, " 2>&1"), &exit_code);
    EXPECT_EQ(exit_code, expected_exit_code) << output;
    return output;
  }
  v1::SecurityConfig ConfigOf(const std::string& name) const {
    v1::SecurityConfig config;
    config.set_certificate(absl::StrCat(folder_, "/", name, ".pem"));
    config.set_key(absl::StrCat(folder_, "/", name, ".key"));
    config.set_authorities(folder_ + "/authorities.pem");
    config.set_client_certificates(true);
    return config;
  }
  static std::string Content(const std::string& path) {
    const auto content = ReadSecretFile(path);
    EXPECT_TRUE(content.ok()) << content.status();
    return content.value_or("");
  }

  const std::string folder_ = MakeTestFolder() + "/pki";
};

TEST_F(CertificatesTest, BothSidesOfAConnectionBelieveThem) {
  const std::string said = Run(absl::StrCat(folder_, " ps0=ps0.example,ps,127.0.0.9 worker"));
  EXPECT_THAT(said, HasSubstr("ps0.pem: ps0,ps0.example,ps,127.0.0.9,localhost,127.0.0.1, for 365 days\n"));
  const auto of_ps = Credentials::Make(ConfigOf("ps0")), of_worker = Credentials::Make(ConfigOf("worker"));
  ASSERT_TRUE(of_ps.ok()) << of_ps.status();
  ASSERT_TRUE(of_worker.ok()) << of_worker.status();
  const auto set = ReadCertificates(ConfigOf("ps0"));
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT(NamesOf(*(*set)->certificate), Contains("ps"));
  EXPECT_THAT(NamesOf(*(*set)->certificate), Contains("ps0.example"));

  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", ServerCredentialsOf(*of_ps, nullptr), &port);
  grpc::EnableDefaultHealthCheckService(true);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const auto channel = MakeChannel(absl::StrCat("127.0.0.1:", port), 1 << 20, *of_worker);
  EXPECT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::minutes(2)));
}

TEST_F(CertificatesTest, AHostThatIsNamedTwiceIsThereOnce) {
  const std::string said = Run(absl::StrCat(folder_, " ps0=localhost,ps0,ps,127.0.0.1,ps localhost"));
  EXPECT_THAT(said, HasSubstr("ps0.pem: ps0,localhost,ps,127.0.0.1, for 365 days\n"));
  EXPECT_THAT(said, HasSubstr("localhost.pem: localhost,127.0.0.1, for 365 days\n"));
  const auto set = ReadCertificates(ConfigOf("ps0"));
  ASSERT_TRUE(set.ok()) << set.status();
  const std::vector<std::string> names = NamesOf(*(*set)->certificate);
  EXPECT_EQ(std::count(names.begin(), names.end(), "localhost"), 1);
}

TEST_F(CertificatesTest, KeysAreTheirOwnersAloneAndLaterRunsGoOnWithTheAuthority) {
  Run(absl::StrCat(folder_, " ps"));
  for (const char* name : {"/ps.key", "/authority.key"}) {
    struct stat found;
    ASSERT_EQ(stat((folder_ + name).c_str(), &found), 0) << name;
    EXPECT_EQ(found.st_mode & 0777, 0600) << name;
  }
  const std::string authority = Content(folder_ + "/authorities.pem"), before = Content(folder_ + "/ps.pem");
  Run(absl::StrCat("--days 7 ", folder_, " ps worker"));
  EXPECT_EQ(Content(folder_ + "/authorities.pem"), authority);
  EXPECT_NE(Content(folder_ + "/ps.pem"), before);
  const auto credentials = Credentials::Make(ConfigOf("ps"));
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EXPECT_THAT((*credentials)->Warning(), AnyOf(HasSubstr("expires in 6 days"), HasSubstr("expires in 7 days")));
  ASSERT_EQ(std::remove((folder_ + "/authority.key").c_str()), 0);
  EXPECT_THAT(Run(absl::StrCat(folder_, " ps"), 1), HasSubstr("is there without"));
}

TEST_F(CertificatesTest, TokensAreDrawnAndPrintedAsIdentitiesThatOnlyReadUnlessARoleIsNamed) {
  const std::string lines = Run(absl::StrCat("--token ", folder_, " dashboard guest=worker operator=admin"));
  const auto identities = server::Identities::Parse("identities:\n" + lines, "printed", false);
  ASSERT_TRUE(identities.ok()) << identities.status();
  const std::vector<std::pair<std::string, v1::Identity::Role>> expected = {
      {"dashboard", v1::Identity::OBSERVER}, {"guest", v1::Identity::WORKER}, {"operator", v1::Identity::ADMIN}};
  ASSERT_EQ((*identities)->all().size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto& [name, role] = expected[i];
    EXPECT_EQ((*identities)->all()[i].name(), name);
    EXPECT_EQ((*identities)->all()[i].role(), role) << name;
    const std::string token = Content(absl::StrCat(folder_, "/", name, ".token"));
    EXPECT_EQ(token.size(), 64);
    EXPECT_EQ((*identities)->ByToken(server::DigestOf(token)), static_cast<int>(i));
  }
}

TEST_F(CertificatesTest, AWrongCommandLineIsRefused) {
  EXPECT_THAT(Run("", 2), HasSubstr("tools/certificates [--days N] DIR NAME"));
  Run(folder_, 2);
  EXPECT_THAT(Run(absl::StrCat(folder_, " 'ps;reboot'"), 2), HasSubstr("is no NAME or NAME=HOST"));
  EXPECT_THAT(Run(absl::StrCat(folder_, " ../ps"), 2), HasSubstr("is no NAME"));
  EXPECT_THAT(Run(absl::StrCat("--token ", folder_, " guest=reader"), 2),
              HasSubstr("the role is observer, worker or admin"));
  EXPECT_THAT(Run(absl::StrCat("--token ", folder_, " guest="), 2), HasSubstr("is no NAME or NAME=ROLE"));
  EXPECT_THAT(Run(absl::StrCat("--days soon ", folder_, " ps"), 2), HasSubstr("is no number of days"));
  EXPECT_THAT(Run(absl::StrCat("--force ", folder_, " ps"), 2), HasSubstr("no option --force"));
}

}  // namespace
}  // namespace lodestone
