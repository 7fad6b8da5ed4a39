// Whole ps, clients and psctl that do not trust each other blindly: TLS, tokens, roles, from end to end.
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/replication.grpc.pb.h"
#include "server/process.h"
#include "tests/cluster/psctl_run.h"
#include "tests/common/rpc/message_limit.h"
#include "tests/common/rpc/reserved_port.h"
#include "tests/common/security/test_certificates.h"
#include "tests/server/auth/identities_file.h"
#include "worker/client/client.h"

namespace lodestone {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kSecuredElements = 64;
constexpr uint32_t kSecuredShards = 8;

// Who shows what. A token is that of the file NAME.token, NAME-token unless a test writes something else there.
class SecureClusterTest : public ::testing::Test {
 protected:
  SecureClusterTest() {
    PutFile(authorities_, authority_.pem());
    for (const char* name : {"ps", "wanda", "olga", "adam", "mallory"}) {
      const TestAuthority::Issued issued = authority_.Issue({.common_name = name});
      PutFile(FileOf(name, "pem"), issued.certificate);
      PutFile(FileOf(name, "key"), issued.key);
      PutFile(FileOf(name, "token"), absl::StrCat(name, "-token\n"));
    }
    PutIdentities("");
    config_.mutable_cluster()->set_servers(2);
    config_.mutable_cluster()->set_shards(kSecuredShards);
    config_.mutable_cluster()->set_replicas(2);
    config_.mutable_coordinator()->set_address(port_.address());
    config_.mutable_coordinator()->set_join_timeout_ms(60'000);
    config_.mutable_server()->set_executors(1);
    config_.mutable_server()->set_data_dir(folder_ + "/data");
    config_.mutable_worker()->set_retry_timeout_ms(60'000);
  }
  ~SecureClusterTest() override {
    client_.reset();
    for (const auto& server : servers_) server->Shutdown(0);
  }

  std::string FileOf(const std::string& name, const std::string& what) const {
    return absl::StrCat(folder_, "/", name, ".", what);
  }
  void PutIdentities(const std::string& more) {
    PutFile(identities_, absl::StrCat("identities:\n", server::IdentityLine("ps", ", role: admin"),
                                      server::IdentityLine("adam", ", role: admin"),
                                      server::IdentityLine("olga", ", role: observer"),
                                      more.empty() ? server::IdentityLine("wanda", wanda_) : more));
  }

  // As NAME would configure it.
  v1::Config ConfigOf(const std::string& name) const {
    v1::Config config = config_;
    v1::SecurityConfig& security = *config.mutable_security();
    if (tls_) {
      security.set_certificate(FileOf(name, "pem"));
      security.set_key(FileOf(name, "key"));
      security.set_authorities(authorities_);
      security.set_client_certificates(true);
    }
    security.set_identities(identities_);
    security.set_audit_log(FileOf(name, "audit"));
    security.set_token(FileOf(name, "token"));
    security.set_reload_ms(10);
    return config;
  }
  // The flags that tell psctl the same.
  std::vector<std::string> FlagsOf(const std::string& name) const {
    std::vector<std::string> flags = {"--set", absl::StrCat("security.token=", FileOf(name, "token"))};
    if (!tls_) return flags;
    for (const std::string& set : {absl::StrCat("security.authorities=", authorities_),
                                   absl::StrCat("security.certificate=", FileOf(name, "pem")),
                                   absl::StrCat("security.key=", FileOf(name, "key"))}) {
      flags.insert(flags.end(), {"--set", set});
    }
    return flags;
  }

  void Start() {
    for (uint32_t index = 0; index < 2; ++index) {
      v1::Config config = ConfigOf("ps");
      config.mutable_server()->set_index(index);
      config.mutable_server()->set_listen(index == 0 ? port_.address() : "127.0.0.1:0");
      auto server = server::ServerProcess::Start(config);
      ASSERT_TRUE(server.ok()) << server.status();
      servers_.push_back(*std::move(server));
    }
    for (const auto& server : servers_) {
      const absl::Status ready = server->WaitUntilReady();
      ASSERT_TRUE(ready.ok()) << ready;
    }
  }
  const std::string& address(size_t server = 0) const { return servers_[server]->address(); }

  // Joins as NAME and makes its tables.
  absl::Status Connect(const std::string& name, std::vector<std::string> tables = {"open"}) {
    client_.reset();
    auto client = worker::Client::Connect(ConfigOf(name));
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    std::vector<v1::TableSpec> specs(tables.size());
    for (size_t i = 0; i < tables.size(); ++i) {
      specs[i].set_name(tables[i]);
      specs[i].mutable_dense()->add_dims(kSecuredElements);
      specs[i].mutable_dense()->set_block_elements(8);
      specs[i].mutable_optimizer()->mutable_sgd();
      specs[i].mutable_optimizer()->set_learning_rate(-1);
      specs[i].mutable_initializer()->mutable_zeros();
    }
    auto handles = client_->EnsureTables(specs);
    if (!handles.ok()) return handles.status();
    tables_ = *std::move(handles);
    return absl::OkStatus();
  }
  // Adds 1 to each element of a table.
  absl::Status Push(size_t table = 0) {
    const std::vector<float> ones(kSecuredElements, 1.0f);
    const worker::DenseGradient gradient{&tables_[table], ones.data()};
    const absl::Status sent = client_->Push(++clock_, {&gradient, 1}, {}, {}, {});
    return sent.ok() ? client_->Flush() : sent;
  }
  absl::StatusOr<float> Pull(size_t table = 0) {
    std::vector<float> values(kSecuredElements, -1.0f);
    const auto versions = client_->PullNow({{&tables_[table], values.data()}}, {});
    if (!versions.ok()) return versions.status();
    for (const float value : values) EXPECT_EQ(value, values[0]);
    return values[0];
  }

  std::shared_ptr<grpc::Channel> ChannelAs(const std::string& name, size_t server = 0) {
    auto credentials = Credentials::Make(ConfigOf(name).security());
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return MakeChannel(address(server), kMessageBytesMax, *credentials);
  }
  v1::StatusResponse Status(size_t server = 0) {
    grpc::ClientContext context;
    v1::StatusResponse status;
    const grpc::Status asked =
        v1::Admin::NewStub(ChannelAs("adam", server))->Status(&context, v1::StatusRequest(), &status);
    EXPECT_TRUE(asked.ok()) << asked.error_message();
    return status;
  }
  // Waits until every shard's follower has caught up; false if one never does.
  bool AwaitFollowers() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    for (size_t server = 0; server < servers_.size(); ++server) {
      while (Status(server).replication().shards_in_sync() < kSecuredShards / servers_.size()) {
        if (std::chrono::steady_clock::now() > deadline) return false;
      }
    }
    return true;
  }
  // The output of psctl health with these flags once the ps is ready: when each shard has its two copies.
  static std::string AwaitReady(const std::vector<std::string>& arguments) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    for (;;) {
      PsctlRun run(arguments);
      const std::string outcome = run.WaitForEnd();
      if (outcome == "ended") return run.output();
      if (std::chrono::steady_clock::now() > deadline) return outcome + "\n" + run.output();
    }
  }
  // Runs psctl as NAME; what it says.
  std::string Psctl(const std::string& name, std::vector<std::string> arguments, bool succeeds) {
    const std::vector<std::string> flags = FlagsOf(name);
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    PsctlRun run(arguments);
    const std::string outcome = run.WaitForEnd();
    EXPECT_EQ(outcome == "ended", succeeds) << outcome << "\n" << run.output();
    return run.output();
  }
  std::vector<nlohmann::json> AuditLog() {
    std::vector<nlohmann::json> lines;
    std::ifstream file(FileOf("ps", "audit"));
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  const std::string folder_ = MakeTestFolder();
  const std::string identities_ = folder_ + "/identities.yaml";
  const std::string authorities_ = folder_ + "/authorities.pem";
  const TestAuthority authority_{"the cluster's authority"};
  const ReservedPort port_;
  std::string wanda_ = ", role: worker";
  bool tls_ = true;
  v1::Config config_;
  std::vector<std::unique_ptr<server::ServerProcess>> servers_;
  std::unique_ptr<worker::Client> client_;
  std::vector<worker::TableHandle> tables_;
  Clock clock_ = 0;
};

TEST_F(SecureClusterTest, EverybodyDoesItsWorkByTlsAndToken) {
  ASSERT_NO_FATAL_FAILURE(Start());
  absl::Status status = Connect("wanda");
  ASSERT_TRUE(status.ok()) << status;
  for (int i = 0; i < 5; ++i) {
    status = Push();
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(*Pull(), 5);
  EXPECT_THAT(Psctl("olga", {"status", "--json", "--address", address()}, true), HasSubstr("wanda"));
  // Each ps follows the other, which is an admin's to do.
  ASSERT_TRUE(AwaitFollowers());
  EXPECT_THAT(Psctl("adam", {"verify", "--live", "--address", address()}, true), Not(HasSubstr("failed")));
  Psctl("adam", {"checkpoint", "before", "--address", address(1)}, true);
  std::vector<std::string> health = {"health", "--address", address()};
  for (const std::string& flag : FlagsOf("adam")) health.push_back(flag);
  EXPECT_THAT(AwaitReady(health), HasSubstr("is ready"));

  bool checkpointed = false;
  std::set<std::string> of_ps;
  for (const nlohmann::json& line : AuditLog()) {
    if (line["identity"] == "ps") of_ps.insert(line["method"].get<std::string>());
    if (line["method"] != "/lodestone.v1.Admin/Checkpoint") continue;
    checkpointed = true;
    EXPECT_EQ(line["identity"], "adam");
    EXPECT_EQ(line["outcome"], "OK");
    EXPECT_EQ(line["what"], "before");
    EXPECT_THAT(line["peer"].get<std::string>(), HasSubstr("127.0.0.1:"));
  }
  EXPECT_TRUE(checkpointed);
  EXPECT_THAT(of_ps, Contains("/lodestone.v1.Coordinator/Join"));
  EXPECT_THAT(of_ps, Contains("/lodestone.v1.Replication/Follow"));
  const v1::StatusResponse told = Status();
  for (const v1::IdentityStatus& identity : told.identities()) {
    if (identity.name() != "wanda") continue;
    EXPECT_GT(identity.calls(), 5);
    EXPECT_GT(identity.push_bytes(), 0);
    EXPECT_EQ(identity.denied(), 0);
  }
}

TEST_F(SecureClusterTest, TokensAloneWorkOnLoopbackAndAtUnixSockets) {
  tls_ = false;
  config_.mutable_cluster()->set_local_sockets(true);
  ASSERT_NO_FATAL_FAILURE(Start());
  const absl::Status status = Connect("wanda");
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Push().ok());
  EXPECT_EQ(*Pull(), 1);
  EXPECT_EQ(Connect("mallory").code(), absl::StatusCode::kUnauthenticated);
  Psctl("olga", {"status", "--address", address()}, true);
  EXPECT_THAT(Psctl("mallory", {"status", "--address", address()}, false), HasSubstr("unknown token"));
}

TEST_F(SecureClusterTest, WhoIsUnknownIsToldSoAtOnce) {
  ASSERT_NO_FATAL_FAILURE(Start());
  absl::Status status = Connect("mallory");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), HasSubstr("unknown token"));
  v1::Config config = ConfigOf("wanda");
  config.mutable_security()->clear_token();
  status = worker::Client::Connect(config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no token was shown"));

  EXPECT_THAT(Psctl("mallory", {"status", "--address", address()}, false), HasSubstr("unknown token"));
  size_t strangers = 0;
  for (const nlohmann::json& line : AuditLog()) strangers += line["outcome"] == "denied" && line["identity"] == "";
  EXPECT_GT(strangers, 0) << "denied calls are in the audit log";
}

TEST_F(SecureClusterTest, PsctlThatKnowsOfNoTlsIsToldThatItMayBeThat) {
  ASSERT_NO_FATAL_FAILURE(Start());
  PsctlRun run({"status", "--address", address(), "--timeout", "60s"});
  EXPECT_THAT(run.WaitForEnd(), HasSubstr("exit code 3"));
  EXPECT_THAT(run.output(), HasSubstr("If it is served by TLS, psctl needs to know security.authorities"));
}

TEST_F(SecureClusterTest, WithAnotherAuthorityThereIsNoConnection) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const TestAuthority other("another authority");
  PutFile(folder_ + "/other.pem", other.pem());
  const TestAuthority::Issued issued = other.Issue({.common_name = "wanda"});
  PutFile(FileOf("foreign", "pem"), issued.certificate);
  PutFile(FileOf("foreign", "key"), issued.key);
  const auto connect = [this](const std::function<void(v1::SecurityConfig*)>& change) {
    v1::Config config = ConfigOf("wanda");
    config.mutable_coordinator()->set_join_timeout_ms(300);
    change(config.mutable_security());
    return worker::Client::Connect(config).status();
  };
  // It believes another one; it shows a certificate of another one; it shows none; it speaks no TLS.
  EXPECT_FALSE(connect([&](auto* security) { security->set_authorities(folder_ + "/other.pem"); }).ok());
  EXPECT_FALSE(connect([&](auto* security) {
                 security->set_certificate(FileOf("foreign", "pem"));
                 security->set_key(FileOf("foreign", "key"));
               }).ok());
  EXPECT_FALSE(connect([](auto* security) {
                 security->clear_certificate();
                 security->clear_key();
                 security->clear_client_certificates();
               }).ok());
  EXPECT_FALSE(connect([&](auto* security) {
                 const std::string token = security->token();
                 security->Clear();
                 security->set_token(token);
               }).ok());
  EXPECT_TRUE(Connect("wanda").ok());
}

TEST_F(SecureClusterTest, AWorkerPushesOnlyWhereItMay) {
  wanda_ = ", role: worker, tables_write: [open], tables_read: [seen]";
  PutIdentities(server::IdentityLine("wanda", wanda_) + server::IdentityLine("mallory", ", role: worker"));
  ASSERT_NO_FATAL_FAILURE(Start());
  absl::Status status = Connect("mallory", {"open", "seen", "secret"});
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(Push(1).ok());
  status = Connect("wanda", {"open", "seen"});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Push(0).ok());
  EXPECT_EQ(*Pull(1), 1);
  status = Push(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("`wanda` (worker) may not push to table `seen`"));
  EXPECT_EQ(*Pull(1), 1);
  status = Connect("wanda", {"open", "secret"});
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(status.message()), HasSubstr("may not push to table `secret`"));
}

TEST_F(SecureClusterTest, NobodyDoesWhatIsAnAdmins) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const absl::Status status = Connect("olga");
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << "an observer joins nothing";
  for (const char* name : {"olga", "wanda"}) {
    EXPECT_THAT(Psctl(name, {"checkpoint", "mine", "--address", address()}, false),
                HasSubstr("which needs the role admin"));
    EXPECT_THAT(Psctl(name, {"rollback", "open", "--to", "0", "--address", address()}, false),
                HasSubstr("which needs the role admin"));
  }
  // What a worker could say in the name of a ps.
  const auto coordinator = v1::Coordinator::NewStub(ChannelAs("wanda"));
  {
    grpc::ClientContext context;
    v1::JoinRequest request;
    request.set_role(v1::ROLE_SERVER);
    request.set_index_plus_one(2);
    request.set_cluster("lodestone");
    request.set_shards(kSecuredShards);
    request.set_address("10.6.6.6:7000");
    v1::JoinResponse response;
    EXPECT_EQ(coordinator->Join(&context, request, &response).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
  const v1::StatusResponse before = Status();
  ASSERT_EQ(before.cluster().servers_size(), 2);
  for (const v1::MemberStatus& server : before.cluster().servers()) {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    request.set_incarnation(server.incarnation());
    request.set_leaving(true);
    v1::HeartbeatResponse response;
    EXPECT_EQ(coordinator->Heartbeat(&context, request, &response).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
  {
    grpc::ClientContext context;
    const auto stream = v1::Replication::NewStub(ChannelAs("wanda"))->Follow(&context);
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
  {
    grpc::ClientContext context;
    v1::ReportSyncRequest request;
    request.set_incarnation(before.cluster().servers(0).incarnation());
    v1::ReportSyncResponse response;
    EXPECT_EQ(coordinator->ReportSync(&context, request, &response).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
  const v1::StatusResponse after = Status();
  for (const v1::MemberStatus& server : after.cluster().servers()) EXPECT_TRUE(server.alive() && !server.left());
}

TEST_F(SecureClusterTest, APsThatIsNoAdminDoesNotJoin) {
  v1::Config config = ConfigOf("ps");
  config.mutable_server()->set_listen(port_.address());
  auto first = server::ServerProcess::Start(config);
  ASSERT_TRUE(first.ok()) << first.status();
  servers_.push_back(*std::move(first));
  config.mutable_server()->set_index(1);
  config.mutable_server()->set_listen("127.0.0.1:0");
  config.mutable_security()->set_token(FileOf("wanda", "token"));
  auto second = server::ServerProcess::Start(config);
  ASSERT_TRUE(second.ok()) << second.status();
  servers_.push_back(*std::move(second));
  const absl::Status ready = servers_[1]->WaitUntilReady();
  EXPECT_EQ(ready.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(ready.message()), HasSubstr("may not call Join as a server, which needs the role admin"));
}

TEST_F(SecureClusterTest, WhoIsRevokedWhileConnectedIsStopped) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Connect("wanda").ok());
  ASSERT_TRUE(Push().ok());
  PutIdentities(server::IdentityLine("stranger", ", role: worker"));
  absl::Status status;
  while (status.ok()) status = Push();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated) << status;
  EXPECT_EQ(Connect("wanda").code(), absl::StatusCode::kUnauthenticated);
}

TEST_F(SecureClusterTest, ATokenIsReplacedWhileTrainingGoesOn) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Connect("wanda").ok());
  ASSERT_TRUE(Push().ok());
  // The new one beside the old one, then in wanda's file, then alone.
  PutIdentities(server::IdentityLine("wanda", wanda_) + server::IdentityLine("wanda2", wanda_));
  PutFile(FileOf("mallory", "token"), "wanda2-token");
  const auto known = [this] {  // By both ps.
    for (size_t server = 0; server < 2; ++server) {
      grpc::ClientContext context;
      v1::RouteResponse route;
      const auto asked = v1::Coordinator::NewStub(ChannelAs("mallory", server))->Route(&context, {}, &route);
      if (asked.error_code() == grpc::StatusCode::UNAUTHENTICATED) return false;
    }
    return true;
  };
  while (!known()) {
  }
  PutFile(FileOf("wanda", "token"), "wanda2-token");
  PutIdentities(server::IdentityLine("wanda2", wanda_));
  float pushed = 1;
  const auto of_wanda2 = [this](size_t server) {
    const v1::StatusResponse told = Status(server);
    for (const v1::IdentityStatus& identity : told.identities()) {
      if (identity.name() == "wanda2") return identity.push_bytes();
    }
    return uint64_t{0};
  };
  while (of_wanda2(0) == 0 || of_wanda2(1) == 0) {
    const absl::Status status = Push();
    ASSERT_TRUE(status.ok()) << status;
    ++pushed;
  }
  EXPECT_EQ(*Pull(), pushed) << "none was lost, and none counted twice";
}

TEST_F(SecureClusterTest, CertificatesAreReplacedWhileTrainingGoesOn) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_TRUE(Connect("wanda").ok());
  ASSERT_TRUE(Push().ok());
  // Everybody believes both authorities for a while, as one does it.
  const TestAuthority next("the next authority");
  PutFile(authorities_, authority_.pem() + next.pem());
  const TestAuthority::Issued issued = next.Issue({.common_name = "mallory"});
  PutFile(FileOf("mallory", "pem"), issued.certificate);
  PutFile(FileOf("mallory", "key"), issued.key);
  PutFile(FileOf("mallory", "token"), "wanda-token");
  while (!ChannelAs("mallory")->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(1))) {
  }
  const TestAuthority::Issued of_ps = next.Issue({.common_name = "ps"});
  PutFile(FileOf("ps", "pem"), of_ps.certificate);
  PutFile(FileOf("ps", "key"), of_ps.key);
  PutFile(folder_ + "/next.pem", next.pem());
  v1::SecurityConfig only_next = ConfigOf("mallory").security();
  only_next.set_authorities(folder_ + "/next.pem");
  const auto credentials = Credentials::Make(only_next);
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  const auto channel = MakeChannel(address(), kMessageBytesMax, *credentials);
  ASSERT_TRUE(channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::minutes(5)));
  EXPECT_TRUE(Push().ok());
  EXPECT_EQ(*Pull(), 2);
}

TEST_F(SecureClusterTest, ABrokenFileOfIdentitiesIsToldAndTheFormerOneCounts) {
  ASSERT_NO_FATAL_FAILURE(Start());
  PutFile(identities_, "identities: [{name: wanda, rolle: worker}]");
  v1::StatusResponse status;
  while (status.server().security_warning().empty()) status = Status();
  EXPECT_THAT(status.server().security_warning(), HasSubstr("did you mean `role`?"));
  EXPECT_THAT(Psctl("olga", {"status", "--json", "--address", address()}, true), HasSubstr("did you mean `role`?"));
  EXPECT_TRUE(Connect("wanda").ok());
  PutIdentities("");
  while (!status.server().security_warning().empty()) status = Status();
}

TEST_F(SecureClusterTest, TheHealthServiceIsOpenToProbes) {
  ASSERT_NO_FATAL_FAILURE(Start());
  // With a certificate, but no token.
  EXPECT_THAT(
      AwaitReady({"health", "--address", address(), "--set", absl::StrCat("security.authorities=", authorities_),
                  "--set", absl::StrCat("security.certificate=", FileOf("mallory", "pem")), "--set",
                  absl::StrCat("security.key=", FileOf("mallory", "key"))}),
      HasSubstr("is ready"));
}

}  // namespace
}  // namespace lodestone
