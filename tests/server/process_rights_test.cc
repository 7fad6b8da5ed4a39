// A whole ps where identities are configured: what each of its ports tells, and to whom.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/replication.pb.h"
#include "server/process.h"
#include "tests/common/http/http_client.h"
#include "tests/common/rpc/message_limit.h"
#include "tests/common/security/test_certificates.h"
#include "tests/server/auth/identities_file.h"
#include "tests/server/rpc/raw_call.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ProcessRightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    PutFile(folder_ + "/identities.yaml",
            absl::StrCat("identities:\n", IdentityLine("ps", ", role: admin"), IdentityLine("olga", ", role: observer"),
                         IdentityLine("nina", "")));
    for (const char* name : {"ps", "olga", "nina", "mallory"}) PutFile(TokenOf(name), absl::StrCat(name, "-token\n"));
    v1::Config config;
    config.mutable_cluster()->set_servers(1);
    config.mutable_cluster()->set_shards(8);
    config.mutable_server()->set_executors(1);
    config.mutable_server()->set_http_listen("127.0.0.1:0");
    config.mutable_security()->set_identities(folder_ + "/identities.yaml");
    config.mutable_security()->set_token(TokenOf("ps"));
    auto process = ServerProcess::Start(config);
    ASSERT_TRUE(process.ok()) << process.status();
    process_ = *std::move(process);
    const absl::Status ready = process_->WaitUntilReady();
    ASSERT_TRUE(ready.ok()) << ready;
  }

  std::string TokenOf(const std::string& name) const { return absl::StrCat(folder_, "/", name, ".token"); }
  // `name` empty: one without a token.
  std::shared_ptr<grpc::Channel> ChannelAs(const std::string& name) const {
    v1::SecurityConfig security;
    if (!name.empty()) security.set_token(TokenOf(name));
    const auto credentials = Credentials::Make(security);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return credentials.ok() ? MakeChannel(process_->address(), kMessageBytesMax, *credentials) : nullptr;
  }
  uint16_t HttpPort() const {
    grpc::ClientContext context;
    v1::StatusResponse status;
    const grpc::Status asked = v1::Admin::NewStub(ChannelAs("olga"))->Status(&context, v1::StatusRequest(), &status);
    EXPECT_TRUE(asked.ok()) << asked.error_message();
    return asked.ok() ? PortIn(status.server().http()) : 0;
  }

  const std::string folder_ = MakeTestFolder();
  std::unique_ptr<ServerProcess> process_;
};

TEST_F(ProcessRightsTest, EachMethodOfEachServiceAsksWhoCallsButThoseOfHealth) {
  std::vector<std::string> methods = {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                      "/lodestone.v1.Admin/NoSuchMethod", "/no.such.Service/Method"};
  // So that they are all linked.
  v1::PushRequest::descriptor(), v1::JoinRequest::descriptor(), v1::FollowRequest::descriptor();
  for (const char* name : {"ParameterServer", "Coordinator", "Admin", "Replication"}) {
    const auto* const service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(absl::StrCat("lodestone.v1.", name));
    ASSERT_NE(service, nullptr) << name;
    for (int i = 0; i < service->method_count(); ++i) {
      methods.push_back(absl::StrCat("/lodestone.v1.", name, "/", service->method(i)->name()));
    }
  }
  const auto unknown = ChannelAs(""), wrong = ChannelAs("mallory"), without_role = ChannelAs("nina");
  for (const std::string& method : methods) {
    EXPECT_EQ(RawCall(unknown, method, "").error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
    EXPECT_EQ(RawCall(wrong, method, "").error_code(), grpc::StatusCode::UNAUTHENTICATED) << method;
    EXPECT_EQ(RawCall(without_role, method, "").error_code(), grpc::StatusCode::PERMISSION_DENIED) << method;
  }
  EXPECT_TRUE(RawCall(unknown, "/grpc.health.v1.Health/Check", "").ok());
  EXPECT_TRUE(RawCall(ChannelAs("olga"), "/lodestone.v1.Admin/Status", "").ok());
}

TEST_F(ProcessRightsTest, TheHttpPortTellsStrangersThatItLivesAndNothingElse) {
  const uint16_t port = HttpPort();
  const auto ask = [port](const std::string& path, const std::string& name) {
    return Get(port, path, name.empty() ? "" : absl::StrCat("Authorization: Bearer ", name, "-token\r\n"));
  };
  for (const char* path : {"/metrics", "/api/status", "/api/events", "/api/history", "/nothing"}) {
    EXPECT_EQ(CodeOf(ask(path, "")), 401) << path;
    EXPECT_EQ(CodeOf(ask(path, "mallory")), 401) << path;
    EXPECT_EQ(CodeOf(ask(path, "nina")), 403) << path;
    EXPECT_EQ(CodeOf(ask(path, "olga")), path == std::string("/nothing") ? 404 : 200) << path;
  }
  for (const char* path : {"/", "/healthz", "/readyz"}) {
    const std::string answer = ask(path, "");
    EXPECT_EQ(CodeOf(answer), 200) << path;
    EXPECT_THAT(answer, Not(HasSubstr("olga"))) << path;
  }
  EXPECT_THAT(ask("/api/status", "olga"), HasSubstr("olga"));
}

}  // namespace
}  // namespace lodestone::server
