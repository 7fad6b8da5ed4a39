// The connection to etcd by TLS, coordinator.etcd_tls: to a real member that asks for certificates.
#include <cstdlib>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/coordinator_finder.h"
#include "common/rpc/etcd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/rpc/etcd_cluster.h"
#include "tests/common/security/test_certificates.h"

namespace lodestone {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kEtcdTlsTimeoutMs = 60'000;

class EtcdTlsTest : public ::testing::Test {
 protected:
  EtcdTlsTest() {
    PutFile(folder_ + "/authorities.pem", authority_.pem());
    PutFile(folder_ + "/strangers.pem", TestAuthority("strangers").pem());
    Issue("member");
    Issue("ps");
  }

  void Issue(const std::string& name) {
    const TestAuthority::Issued issued = authority_.Issue({.common_name = name});
    PutFile(Path(name + ".pem"), issued.certificate);
    PutFile(Path(name + ".key"), issued.key);
  }
  std::string Path(const std::string& file) const { return absl::StrCat(folder_, "/", file); }
  void StartEtcd() {
    auto etcd = EtcdCluster::Start(1, folder_,
                                   EtcdCluster::Tls{Path("authorities.pem"), Path("member.pem"), Path("member.key")});
    ASSERT_TRUE(etcd.ok()) << etcd.status();
    etcd_ = *std::move(etcd);
    config_.mutable_coordinator()->add_etcd(etcd_->endpoint(0));
  }
  v1::EtcdTlsConfig& tls() { return *config_.mutable_coordinator()->mutable_etcd_tls(); }
  void SetFiles() {
    tls().set_authorities(Path("authorities.pem"));
    tls().set_certificate(Path("ps.pem"));
    tls().set_key(Path("ps.key"));
  }
  // A question by the configured credentials.
  absl::Status Ask() {
    const absl::StatusOr<CredentialsRef> credentials = EtcdCredentials(config_.coordinator());
    if (!credentials.ok()) return credentials.status();
    return EtcdClient(etcd_->endpoints(), kEtcdTlsTimeoutMs, *credentials).Get("a").status();
  }

  const std::string folder_ = MakeTestFolder();
  const TestAuthority authority_{"etcd"};
  v1::Config config_;
  std::unique_ptr<EtcdCluster> etcd_;
};

TEST_F(EtcdTlsTest, AllThatIsAskedOfEtcdGoesByTls) {
  ASSERT_NO_FATAL_FAILURE(StartEtcd());
  SetFiles();
  const absl::StatusOr<CredentialsRef> credentials = EtcdCredentials(config_.coordinator());
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EtcdClient client(etcd_->endpoints(), kEtcdTlsTimeoutMs, *credentials);
  const auto lease = client.Grant(3600);
  ASSERT_TRUE(lease.ok()) << lease.status();
  const std::string key = EtcdCoordinatorKey(config_.cluster().name());
  const auto put = client.PutIf({{key, EtcdClient::Condition::What::kCreated, 0}}, key, "ps-1:7000", lease->id);
  ASSERT_TRUE(put.ok() && put->done) << put.status();
  EXPECT_TRUE(client.KeepAlive(lease->id).ok());

  CoordinatorFinder finder(config_);
  EXPECT_FALSE(finder.is_fixed());
  absl::StatusOr<std::string> address;
  do {  // A busy machine's etcd may be late.
    address = finder.Address();
  } while (absl::IsDeadlineExceeded(address.status()));
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_EQ(*address, "ps-1:7000");

  EXPECT_TRUE(client.Revoke(lease->id).ok());
  const auto found = client.Get(key);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->has_value());
}

TEST_F(EtcdTlsTest, APlainConnectionIsSaidToBeOne) {
  ASSERT_NO_FATAL_FAILURE(StartEtcd());
  const absl::Status status = Ask();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(etcd_->endpoint(0)), HasSubstr("coordinator.etcd_tls.authorities")));
}

TEST_F(EtcdTlsTest, AMemberOfAnotherAuthorityIsNotBelieved) {
  ASSERT_NO_FATAL_FAILURE(StartEtcd());
  SetFiles();
  tls().set_authorities(Path("strangers.pem"));
  const absl::Status status = Ask();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(etcd_->endpoint(0)),
                    HasSubstr("its certificate must be of that host and of coordinator.etcd_tls.authorities")));
}

TEST_F(EtcdTlsTest, AMemberThatAsksForACertificateIsNotReachedWithoutOne) {
  ASSERT_NO_FATAL_FAILURE(StartEtcd());
  SetFiles();
  tls().clear_certificate();
  tls().clear_key();
  const absl::Status status = Ask();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr(etcd_->endpoint(0)), HasSubstr("coordinator.etcd_tls.certificate")));
}

TEST_F(EtcdTlsTest, WithoutFilesThereAreNoCredentials) {
  const absl::StatusOr<CredentialsRef> credentials = EtcdCredentials(config_.coordinator());
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EXPECT_EQ(*credentials, nullptr);
}

TEST_F(EtcdTlsTest, ErrorsNameFieldAndFile) {
  const auto error = [this] {
    const absl::Status status = EtcdCredentials(config_.coordinator()).status();
    // What a process says that looks for its coordinator.
    config_.mutable_coordinator()->clear_etcd();
    config_.mutable_coordinator()->add_etcd("127.0.0.1:1");
    CoordinatorFinder finder(config_);
    EXPECT_FALSE(finder.is_fixed());
    EXPECT_EQ(finder.Address().status(), status);
    return std::string(status.message());
  };
  SetFiles();
  tls().set_key(Path("member.key"));
  EXPECT_THAT(error(), AllOf(HasSubstr("coordinator.etcd_tls.key: " + Path("member.key") + ": is not the key of"),
                             HasSubstr(Path("ps.pem"))));
  tls().set_key(Path("missing.key"));
  EXPECT_THAT(error(), AllOf(HasSubstr("coordinator.etcd_tls.key: "), HasSubstr(Path("missing.key"))));
  tls().set_authorities(Path("ps.key"));
  tls().set_key(Path("ps.key"));
  EXPECT_THAT(error(), HasSubstr("coordinator.etcd_tls.authorities: " + Path("ps.key") + ": holds no certificate"));
  tls().clear_authorities();
  EXPECT_THAT(error(), HasSubstr("coordinator.etcd_tls.authorities: must be set"));
  tls().clear_certificate();
  EXPECT_THAT(error(), HasSubstr("coordinator.etcd_tls.certificate: must be set, because coordinator.etcd_tls.key is"));
}

}  // namespace
}  // namespace lodestone
