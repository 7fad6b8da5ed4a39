#include "common/security/credentials.h"

#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/rpc/channel.h"
#include "common/rpc/local_socket.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/parameter_server.grpc.pb.h"
#include "tests/common/security/test_certificates.h"

namespace lodestone {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kMessageBytesMax = 1 << 20;

// What a service sees of its callers.
class Witness {
 public:
  void Note(const grpc::ServerContextBase& context) {
    MutexLock lock(&mu_);
    calls_.push_back(CallOf(context));
  }
  std::vector<IncomingCall> Take() {
    MutexLock lock(&mu_);
    return std::exchange(calls_, {});
  }

 private:
  Mutex mu_;
  std::vector<IncomingCall> calls_ ABSL_GUARDED_BY(mu_);
};

class UnaryService final : public v1::Coordinator::Service {
 public:
  explicit UnaryService(Witness* witness) : witness_(witness) {}
  grpc::Status Join(grpc::ServerContext* context, const v1::JoinRequest*, v1::JoinResponse*) override {
    witness_->Note(*context);
    return grpc::Status::OK;
  }

 private:
  Witness* const witness_;
};

class StreamService final : public v1::ParameterServer::Service {
 public:
  explicit StreamService(Witness* witness) : witness_(witness) {}
  grpc::Status Exchange(grpc::ServerContext* context,
                        grpc::ServerReaderWriter<v1::ExchangeResponse, v1::ExchangeRequest>* stream) override {
    witness_->Note(*context);
    v1::ExchangeRequest request;
    while (stream->Read(&request)) stream->Write(v1::ExchangeResponse());
    return grpc::Status::OK;
  }

 private:
  Witness* const witness_;
};

// A server, and those who call it.
class CredentialsTest : public ::testing::Test {
 protected:
  // Writes a certificate of `authority` and its key, and what `believed` vouch for, into the folder NAME, and returns
  // the configuration that names them.
  v1::SecurityConfig ConfigOf(const std::string& name, const TestAuthority& authority,
                              const TestAuthority::Subject& subject,
                              const std::vector<const TestAuthority*>& believed) {
    const std::string folder = absl::StrCat(folder_, "/", name);
    EXPECT_EQ(mkdir(folder.c_str(), 0700), 0);
    const TestAuthority::Issued issued = authority.Issue(subject);
    PutFile(folder + "/certificate.pem", issued.certificate);
    PutFile(folder + "/key.pem", issued.key);
    std::string authorities;
    for (const TestAuthority* one : believed) authorities += one->pem();
    PutFile(folder + "/authorities.pem", authorities);
    v1::SecurityConfig config;
    config.set_certificate(folder + "/certificate.pem");
    config.set_key(folder + "/key.pem");
    config.set_authorities(folder + "/authorities.pem");
    config.set_reload_ms(10);
    return config;
  }
  // The same, with files that a link leads to, now to the folder NAME, as Kubernetes mounts a Secret.
  v1::SecurityConfig Linked(v1::SecurityConfig config, const std::string& name) {
    const std::string link = folder_ + "/current";
    PointTo(link, absl::StrCat(folder_, "/", name));
    config.set_certificate(link + "/certificate.pem");
    config.set_key(link + "/key.pem");
    config.set_authorities(link + "/authorities.pem");
    return config;
  }
  // One who shows no certificate.
  v1::SecurityConfig ConfigOf(const TestAuthority& believed) {
    v1::SecurityConfig config;
    config.set_authorities(absl::StrCat(folder_, "/believed-", ++files_, ".pem"));
    PutFile(config.authorities(), believed.pem());
    return config;
  }
  std::string TokenFileOf(const std::string& token) {
    const std::string path = absl::StrCat(folder_, "/token-", ++files_);
    PutFile(path, token + "\n");
    return path;
  }

  static CredentialsRef Make(const v1::SecurityConfig& config) {
    auto credentials = Credentials::Make(config);
    EXPECT_TRUE(credentials.ok()) << credentials.status();
    return credentials.ok() ? *credentials : nullptr;
  }

  // A certificate of the authority, good from now on or not any more.
  TestAuthority::Issued IssueFor(const std::string& name, bool expired) const {
    TestAuthority::Subject subject{.common_name = name};
    if (expired) subject.begins_in_s = -7200, subject.ends_in_s = -3600;
    return authority_.Issue(subject);
  }

  void Serve(const CredentialsRef& credentials, Authorizer authorize = nullptr,
             const std::string& address = "127.0.0.1:0") {
    ServeWith(ServerCredentialsOf(credentials, std::move(authorize)), address);
  }
  void ServeWith(const std::shared_ptr<grpc::ServerCredentials>& credentials,
                 const std::string& address = "127.0.0.1:0") {
    server_.reset();
    grpc::ServerBuilder builder;
    ApplyServerSettings(&builder, kMessageBytesMax);
    builder.AddListeningPort(address, credentials, &port_);
    builder.RegisterService(&unary_);
    builder.RegisterService(&stream_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }
  ~CredentialsTest() override {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  static grpc::Status Join(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::JoinResponse response;
    return v1::Coordinator::NewStub(channel)->Join(&context, v1::JoinRequest(), &response);
  }
  grpc::Status JoinAs(const CredentialsRef& credentials) {
    return Join(MakeChannel(address(), kMessageBytesMax, credentials));
  }

  const std::string folder_ = MakeTestFolder();
  const TestAuthority authority_{"the authority"};
  const TestAuthority other_authority_{"another authority"};
  int files_ = 0;
  Witness witness_;
  UnaryService unary_{&witness_};
  StreamService stream_{&witness_};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(CredentialsTest, WithoutSecurityThereAreNone) {
  EXPECT_EQ(Make(v1::SecurityConfig()), nullptr);
  ASSERT_NO_FATAL_FAILURE(Serve(nullptr));
  EXPECT_TRUE(JoinAs(nullptr).ok());
  EXPECT_THAT(witness_.Take().at(0).authorization, IsEmpty());
}

// One call of each kind that there is in this project.
// As gRPC does with those of a channel that it lets go of late.
TEST_F(CredentialsTest, NobodyReadsCertificatesAnyMoreWhenTheProcessExits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  v1::SecurityConfig config = ConfigOf("server", authority_, {.common_name = "server"}, {&authority_});
  config.set_reload_ms(1);
  for (int round = 0; round < 10; ++round) {
    EXPECT_EXIT(
        {
          static auto* const kept = new std::vector<CredentialsRef>;
          for (int i = 0; i < 8; ++i) kept->push_back(Make(config));
          std::exit(0);
        },
        testing::ExitedWithCode(0), "");
  }
}

TEST_F(CredentialsTest, ATokenIsInEveryCallWithTlsAndWithout) {
  const v1::SecurityConfig of_server = ConfigOf("ps", authority_, {.common_name = "ps"}, {&authority_});
  for (const bool tls : {false, true}) {
    SCOPED_TRACE(tls ? "TLS" : "plain");
    v1::SecurityConfig config = tls ? ConfigOf(authority_) : v1::SecurityConfig();
    config.set_token(TokenFileOf("secret-token"));
    ASSERT_NO_FATAL_FAILURE(Serve(tls ? Make(of_server) : nullptr));
    const auto channel = MakeChannel(address(), kMessageBytesMax, Make(config));

    EXPECT_TRUE(Join(channel).ok());
    {
      grpc::ClientContext context;
      const auto stream = v1::ParameterServer::NewStub(channel)->Exchange(&context);
      v1::ExchangeResponse response;
      EXPECT_TRUE(stream->Write(v1::ExchangeRequest()) && stream->Read(&response));
      stream->WritesDone();
      EXPECT_TRUE(stream->Finish().ok());
    }
    {
      grpc::CompletionQueue queue;
      grpc::ClientContext context;
      v1::JoinResponse response;
      grpc::Status status;
      const auto stub = v1::Coordinator::NewStub(channel);
      const auto reader = stub->AsyncJoin(&context, v1::JoinRequest(), &queue);
      reader->Finish(&response, &status, nullptr);
      void* tag;
      bool ok = false;
      EXPECT_TRUE(queue.Next(&tag, &ok) && ok && status.ok()) << status.error_message();
      queue.Shutdown();
    }
    const std::vector<IncomingCall> calls = witness_.Take();
    ASSERT_EQ(calls.size(), 3);
    for (const IncomingCall& call : calls) EXPECT_THAT(call.authorization, ElementsAre("Bearer secret-token"));
  }
}

TEST_F(CredentialsTest, ATokenThatHasChangedIsInTheNextCall) {
  v1::SecurityConfig config;
  config.set_token(TokenFileOf("first"));
  config.set_reload_ms(10);
  ASSERT_NO_FATAL_FAILURE(Serve(nullptr));
  const auto channel = MakeChannel(address(), kMessageBytesMax, Make(config));
  ASSERT_TRUE(Join(channel).ok());
  EXPECT_THAT(witness_.Take().at(0).authorization, ElementsAre("Bearer first"));
  PutFile(config.token(), "second");
  for (;;) {
    ASSERT_TRUE(Join(channel).ok());
    const std::vector<std::string> shown = witness_.Take().at(0).authorization;
    if (shown == std::vector<std::string>{"Bearer second"}) break;
    ASSERT_THAT(shown, ElementsAre("Bearer first"));
  }
}

TEST_F(CredentialsTest, TheDoorSeesWhoCallsWhatAndItsRefusalReachesTheCallerBeforeAnyService) {
  for (const bool tls : {false, true}) {
    SCOPED_TRACE(tls ? "TLS" : "plain");
    const std::string name = tls ? "tls" : "plain";
    v1::SecurityConfig of_server =
        ConfigOf(absl::StrCat("ps-", name), authority_, {.common_name = "ps"}, {&authority_});
    of_server.set_client_certificates(true);
    v1::SecurityConfig config;
    if (tls) {
      config = ConfigOf(absl::StrCat("worker-", name), authority_,
                        {.common_name = "worker 7", .dns_names = {"worker7.example"}}, {&authority_});
    }
    config.set_token(TokenFileOf("of-worker-7"));
    Mutex mu;
    std::vector<IncomingCall> at_door;
    absl::Status verdict;
    ASSERT_NO_FATAL_FAILURE(Serve(tls ? Make(of_server) : nullptr, [&](const IncomingCall& call) {
      MutexLock lock(&mu);
      at_door.push_back(call);
      return verdict;
    }));
    const auto channel = MakeChannel(address(), kMessageBytesMax, Make(config));
    EXPECT_TRUE(Join(channel).ok());
    {
      MutexLock lock(&mu);
      ASSERT_EQ(at_door.size(), 1);
      EXPECT_EQ(at_door[0].method, "/lodestone.v1.Coordinator/Join");
      EXPECT_THAT(at_door[0].authorization, ElementsAre("Bearer of-worker-7"));
      EXPECT_THAT(at_door[0].agent, HasSubstr("grpc"));
      using Names = std::vector<std::string>;
      EXPECT_EQ(at_door[0].certificate_names, tls ? Names({"worker 7", "worker7.example"}) : Names());
      verdict = absl::PermissionDeniedError("`worker 7` may not do this");
    }
    const std::vector<IncomingCall> served = witness_.Take();
    ASSERT_EQ(served.size(), 1);
    EXPECT_EQ(served[0].certificate_names, at_door[0].certificate_names);
    EXPECT_THAT(served[0].peer, HasSubstr("127.0.0.1:"));

    const grpc::Status unary = Join(channel);
    EXPECT_EQ(unary.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_EQ(unary.error_message(), "`worker 7` may not do this");
    grpc::ClientContext context;
    const auto stream = v1::ParameterServer::NewStub(channel)->Exchange(&context);
    const grpc::Status streamed = stream->Finish();
    EXPECT_EQ(streamed.error_code(), grpc::StatusCode::PERMISSION_DENIED);
    EXPECT_EQ(streamed.error_message(), "`worker 7` may not do this");
    EXPECT_THAT(witness_.Take(), IsEmpty());
  }
}

TEST_F(CredentialsTest, TheDoorStandsAtUnixSocketsToo) {
  v1::SecurityConfig config;
  config.set_token(TokenFileOf("local"));
  const std::string target = LocalSocketTarget(DrawLocalSocket());
  ASSERT_NO_FATAL_FAILURE(Serve(
      nullptr,
      [](const IncomingCall& call) {
        const bool known = !call.authorization.empty() && call.authorization[0] == "Bearer local";
        return known ? absl::OkStatus() : absl::UnauthenticatedError("who is there?");
      },
      target));
  EXPECT_TRUE(Join(MakeChannel(target, kMessageBytesMax, Make(config))).ok());
  EXPECT_EQ(Join(MakeChannel(target, kMessageBytesMax)).error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(CredentialsTest, AServerIsBelievedOnlyWithAGoodCertificateOfTheHostThatWasCalled) {
  struct Case {
    const char* what;
    const TestAuthority* issuer;
    TestAuthority::Subject subject;
  };
  const CredentialsRef client = Make(ConfigOf(authority_));
  const Case bad[] = {
      {"another authority's", &other_authority_, {.common_name = "ps"}},
      {"another host's", &authority_, {.common_name = "ps", .dns_names = {"ps1.example"}, .addresses = {"10.0.0.1"}}},
      {"one of nobody's names", &authority_, {.common_name = "ps", .dns_names = {}, .addresses = {}}},
  };
  int number = 0;
  for (const Case& one : bad) {
    SCOPED_TRACE(one.what);
    const v1::SecurityConfig config = ConfigOf(absl::StrCat("bad-", ++number), *one.issuer, one.subject, {&authority_});
    ASSERT_NO_FATAL_FAILURE(Serve(Make(config)));
    const grpc::Status status = JoinAs(client);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    EXPECT_THAT(witness_.Take(), IsEmpty());
  }
  ASSERT_NO_FATAL_FAILURE(Serve(Make(ConfigOf("good", authority_, {.common_name = "ps"}, {&authority_}))));
  const grpc::Status status = JoinAs(client);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(CredentialsTest, AServerWithTlsTakesNoPlainConnectionsAndTheOtherWayRound) {
  const v1::SecurityConfig config = ConfigOf("ps", authority_, {.common_name = "ps"}, {&authority_});
  ASSERT_NO_FATAL_FAILURE(Serve(Make(config)));
  EXPECT_EQ(JoinAs(nullptr).error_code(), grpc::StatusCode::UNAVAILABLE);
  ASSERT_NO_FATAL_FAILURE(Serve(nullptr));
  EXPECT_EQ(JoinAs(Make(config)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(witness_.Take(), IsEmpty());
}

TEST_F(CredentialsTest, WithClientCertificatesOnlyThoseOfTheAuthoritiesComeIn) {
  v1::SecurityConfig of_server = ConfigOf("ps", authority_, {.common_name = "ps"}, {&authority_});
  of_server.set_client_certificates(true);
  ASSERT_NO_FATAL_FAILURE(Serve(Make(of_server)));
  const auto good = Make(ConfigOf("good", authority_, {.common_name = "good"}, {&authority_}));
  const auto foreign = Make(ConfigOf("foreign", other_authority_, {.common_name = "foreign"}, {&authority_}));
  EXPECT_TRUE(JoinAs(good).ok());
  EXPECT_THAT(witness_.Take().at(0).certificate_names, Contains("good"));
  EXPECT_EQ(JoinAs(foreign).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(JoinAs(Make(ConfigOf(authority_))).error_code(), grpc::StatusCode::UNAVAILABLE) << "it shows none";
  EXPECT_THAT(witness_.Take(), IsEmpty());
}

TEST_F(CredentialsTest, ACertificateThatWasReplacedIsServedWithoutARestart) {
  const v1::SecurityConfig config =
      ConfigOf("before", authority_, {.common_name = "ps"}, {&authority_, &other_authority_});
  ConfigOf("after", other_authority_, {.common_name = "ps"}, {&authority_, &other_authority_});
  ASSERT_NO_FATAL_FAILURE(Serve(Make(Linked(config, "before"))));
  const auto of_before = Make(ConfigOf(authority_));
  const auto of_after = Make(ConfigOf(other_authority_));
  const auto open = MakeChannel(address(), kMessageBytesMax, of_before);
  ASSERT_TRUE(Join(open).ok());
  ASSERT_EQ(JoinAs(of_after).error_code(), grpc::StatusCode::UNAVAILABLE);

  PointTo(folder_ + "/current", folder_ + "/after");
  const auto fresh = MakeChannel(address(), kMessageBytesMax, of_after);  // Tries again and again.
  EXPECT_TRUE(fresh->WaitForConnected(std::chrono::system_clock::now() + std::chrono::minutes(5)));
  EXPECT_TRUE(Join(fresh).ok());
  EXPECT_TRUE(Join(open).ok()) << "a connection that there was goes on";
  EXPECT_EQ(JoinAs(of_before).error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(CredentialsTest, AServerWhoseCertificateHasExpiredIsNotBelieved) {
  const CredentialsRef client = Make(ConfigOf(authority_));
  // It would not start like that by itself, but may come to it.
  for (const bool expired : {false, true}) {
    SCOPED_TRACE(expired ? "expired" : "good");
    const TestAuthority::Issued issued = IssueFor("ps", expired);
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({issued.key, issued.certificate});
    ASSERT_NO_FATAL_FAILURE(ServeWith(grpc::SslServerCredentials(options)));
    EXPECT_EQ(JoinAs(client).error_code(), expired ? grpc::StatusCode::UNAVAILABLE : grpc::StatusCode::OK);
  }
}

TEST_F(CredentialsTest, AClientWhoseCertificateHasExpiredDoesNotComeIn) {
  v1::SecurityConfig of_server = ConfigOf("ps", authority_, {.common_name = "ps"}, {&authority_});
  of_server.set_client_certificates(true);
  ASSERT_NO_FATAL_FAILURE(Serve(Make(of_server)));
  for (const bool expired : {false, true}) {
    SCOPED_TRACE(expired ? "expired" : "good");
    const TestAuthority::Issued issued = IssueFor("worker", expired);
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority_.pem();
    options.pem_private_key = issued.key;
    options.pem_cert_chain = issued.certificate;
    const auto channel = grpc::CreateCustomChannel(address(), grpc::SslCredentials(options), ChannelSettings(1 << 20));
    EXPECT_EQ(Join(channel).error_code(), expired ? grpc::StatusCode::UNAVAILABLE : grpc::StatusCode::OK);
  }
}

TEST_F(CredentialsTest, FilesThatCannotBeUsedDoNotTakeThePlaceOfThoseBefore) {
  const v1::SecurityConfig good = ConfigOf("good", authority_, {.common_name = "ps"}, {&authority_});
  ConfigOf("expired", authority_, {.common_name = "ps", .begins_in_s = -7200, .ends_in_s = -3600}, {&authority_});
  const v1::SecurityConfig broken = ConfigOf("broken", authority_, {.common_name = "ps"}, {&authority_});
  PutFile(broken.certificate(), "half a certifi");
  const v1::SecurityConfig mixed = ConfigOf("mixed", authority_, {.common_name = "ps"}, {&authority_});
  PutFile(mixed.key(), authority_.Issue({.common_name = "ps"}).key);
  ConfigOf("other", other_authority_, {.common_name = "ps"}, {&authority_});

  const CredentialsRef of_server = Make(Linked(good, "good"));
  ASSERT_NO_FATAL_FAILURE(Serve(of_server));
  const CredentialsRef client = Make(ConfigOf(authority_));
  constexpr std::pair<const char*, const char*> kBad[] = {{"expired", "has expired, at "},
                                                          {"broken", "holds no certificate"},
                                                          {"mixed", "is not the key of "},
                                                          {"missing", "open"}};
  for (const auto& [name, problem] : kBad) {
    SCOPED_TRACE(name);
    PointTo(folder_ + "/current", absl::StrCat(folder_, "/", name));
    while (!absl::StrContains(of_server->Warning(), problem)) {
    }
    // gRPC looks each second.
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1500);
    do {
      const grpc::Status status = JoinAs(client);
      ASSERT_TRUE(status.ok()) << status.error_message();
    } while (std::chrono::steady_clock::now() < end);
  }
  // One that can be used does.
  PointTo(folder_ + "/current", folder_ + "/other");
  while (JoinAs(client).ok()) {
  }
  EXPECT_EQ(of_server->Warning(), "");
}

TEST_F(CredentialsTest, PortsAndChannelsKeepWhatTheyNeedOfIt) {
  v1::SecurityConfig of_server = ConfigOf("ps", authority_, {.common_name = "ps"}, {&authority_});
  auto credentials = Make(of_server);
  const std::weak_ptr<const Credentials> server_side = credentials;
  ASSERT_NO_FATAL_FAILURE(Serve(std::exchange(credentials, nullptr)));
  EXPECT_FALSE(server_side.expired());
  credentials = Make(ConfigOf(authority_));
  const std::weak_ptr<const Credentials> client_side = credentials;
  auto channel = MakeChannel(address(), kMessageBytesMax, std::exchange(credentials, nullptr));
  EXPECT_TRUE(Join(channel).ok());
  EXPECT_FALSE(client_side.expired());
  // gRPC frees connections in its own time.
  channel.reset();
  while (!client_side.expired()) std::this_thread::yield();
  server_->Shutdown(std::chrono::system_clock::now());
  server_.reset();
  while (!server_side.expired()) std::this_thread::yield();
}

TEST_F(CredentialsTest, ATokenIsNotShownWhereAnybodyCouldReadIt) {
  v1::SecurityConfig config;
  config.set_token(TokenFileOf("secret-token"));
  const CredentialsRef plain = Make(config);
  for (const char* target : {"192.0.2.1:7000", "ps0.invalid:7000", "dns:///127.0.0.1:7000", "[2001:db8::1]:7000"}) {
    const auto channel = MakeChannel(target, kMessageBytesMax, plain);
    const grpc::Status status = Join(channel);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << target;
    EXPECT_EQ(status.error_message(),
              absl::StrCat("the token is not shown to ", target,
                           " without encryption, where others on the network could read it: set security.authorities"));
    grpc::ClientContext context;
    const auto stream = v1::ParameterServer::NewStub(channel)->Exchange(&context);
    stream->Write(v1::ExchangeRequest());
    v1::ExchangeResponse response;
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED) << target;
  }
  ASSERT_NO_FATAL_FAILURE(Serve(nullptr));
  EXPECT_TRUE(JoinAs(plain).ok());
  EXPECT_THAT(witness_.Take().at(0).authorization, ElementsAre("Bearer secret-token"));
}

TEST_F(CredentialsTest, WhatCannotBeUsedIsAnErrorThatNamesFieldAndFile) {
  const v1::SecurityConfig good = ConfigOf("good", authority_, {.common_name = "ps"}, {&authority_});
  const auto error = [](const v1::SecurityConfig& config) {
    return std::string(Credentials::Make(config).status().message());
  };
  v1::SecurityConfig config = good;
  config.set_certificate(folder_ + "/missing.pem");
  EXPECT_THAT(error(config), HasSubstr(absl::StrCat("security.certificate: ", folder_, "/missing.pem: open")));
  config = good;
  config.set_certificate(good.key());
  EXPECT_THAT(error(config), HasSubstr("key.pem: holds no certificate"));
  config = good;
  config.set_key(good.certificate());
  EXPECT_THAT(error(config), HasSubstr("security.key: "));
  EXPECT_THAT(error(config), HasSubstr("holds no private key"));
  config = good;
  config.set_key(ConfigOf("other", authority_, {.common_name = "ps"}, {&authority_}).key());
  EXPECT_THAT(error(config), HasSubstr("is not the key of "));
  config = good;
  config.set_authorities(good.key());
  EXPECT_THAT(error(config), HasSubstr("security.authorities: "));
  config = good;
  config.clear_key();
  EXPECT_EQ(error(config), "security.key: must be set: it is the key of security.certificate");
  config = good;
  config.clear_authorities();
  EXPECT_THAT(error(config), HasSubstr("security.authorities: must be set"));
  config.Clear();
  config.set_client_certificates(true);
  EXPECT_THAT(error(config), HasSubstr("security.client_certificates: needs security.certificate"));
  config.Clear();
  config.set_token(TokenFileOf(""));
  EXPECT_THAT(error(config), HasSubstr("holds no token"));
  config.set_token(TokenFileOf("two words"));
  EXPECT_THAT(error(config), HasSubstr("a token is one line"));
  config.set_token(folder_);
  EXPECT_THAT(error(config), HasSubstr("security.token: "));
}

}  // namespace
}  // namespace lodestone
