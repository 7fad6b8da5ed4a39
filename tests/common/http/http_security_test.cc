// The HTTP port, for those who may ask and those who may not; with TLS and without.
#include <signal.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/http/monitoring.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "tests/common/http/http_client.h"
#include "tests/common/security/test_certificates.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr size_t kPageBytes = 20 << 20;

HttpServer::Paths SomePaths() {
  const auto says = [](std::string text) {
    return [text = std::move(text)](const HttpRequest&) { return HttpResponse{.body = text}; };
  };
  return {{"/", says("page")},
          {"/healthz", says("alive")},
          {"/metrics", says("numbers")},
          {"/big", says(std::string(kPageBytes, 'x'))},
          {"/who", [](const HttpRequest& request) {
             return HttpResponse{
                 .body = absl::StrCat(request.has_certificate, " ", absl::StrJoin(request.certificate_names, ","))};
           }}};
}

class HttpSecurityTest : public ::testing::Test {
 protected:
  v1::SecurityConfig ConfigOf(const std::string& name, const TestAuthority& issuer) {
    const TestAuthority::Issued issued = issuer.Issue({.common_name = name, .dns_names = {name + ".example"}});
    v1::SecurityConfig config;
    config.set_certificate(absl::StrCat(folder_, "/", name, ".pem"));
    config.set_key(absl::StrCat(folder_, "/", name, ".key"));
    config.set_authorities(folder_ + "/authorities.pem");
    config.set_reload_ms(10);
    PutFile(config.certificate(), issued.certificate);
    PutFile(config.key(), issued.key);
    PutFile(config.authorities(), authority_.pem());
    return config;
  }
  void Start(HttpServer::Security security) {
    auto server = HttpServer::Start("127.0.0.1:0", SomePaths(), std::move(security), timeout_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  void StartTls(bool client_certificates) {
    config_ = ConfigOf("ps", authority_);
    config_.set_client_certificates(client_certificates);
    auto credentials = Credentials::Make(config_);
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    ASSERT_NO_FATAL_FAILURE(Start(HttpSecurityOf(*credentials)));
  }
  // What a client gets who believes in `authority`, and shows the certificate of `shown`, if there is one: code and
  // body; 0 and nothing if there is no connection.
  std::pair<int, std::string> Ask(const std::string& path, const TestAuthority& authority,
                                  const v1::SecurityConfig& shown = {}) {
    const std::string believed = absl::StrCat(folder_, "/believed.pem");
    PutFile(believed, authority.pem());
    signal(SIGPIPE, SIG_IGN);  // OpenSSL says goodbye also to a server that has hung up.
    httplib::SSLClient client("127.0.0.1", server_->port(), shown.certificate(), shown.key());
    client.set_ca_cert_path(believed.c_str());
    client.enable_server_certificate_verification(true);
    const httplib::Result result = client.Get(path.c_str());
    if (!result) return {0, ""};
    return {result->status, result->body};
  }

  const std::string folder_ = MakeTestFolder();
  const TestAuthority authority_{"ca"}, other_authority_{"other ca"};
  std::chrono::milliseconds timeout_{limits::kHttpTimeoutMs};
  v1::SecurityConfig config_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpSecurityTest, WhatIsNotOpenIsAnsweredOnlyToWhoMayAsk) {
  HttpServer::Security security;
  security.check = [](const HttpRequest& request) {
    if (request.token == "good") return absl::OkStatus();
    return request.token.empty() ? absl::UnauthenticatedError("who are you?")
                                 : absl::PermissionDeniedError("`eve` may not look");
  };
  ASSERT_NO_FATAL_FAILURE(Start(std::move(security)));
  const auto ask = [this](const std::string& path, const std::string& token) {
    return Get(server_->port(), path, token.empty() ? "" : absl::StrCat("Authorization: Bearer ", token, "\r\n"));
  };
  EXPECT_EQ(BodyOf(ask("/metrics", "good")), "numbers");
  const std::string unknown = ask("/metrics", "");
  EXPECT_EQ(CodeOf(unknown), 401);
  EXPECT_THAT(unknown, HasSubstr("WWW-Authenticate: Bearer realm=\"lodestone\"\r\n"));
  EXPECT_EQ(BodyOf(unknown), "HTTP 401: who are you?\n");
  const std::string known = ask("/metrics", "bad");
  EXPECT_EQ(CodeOf(known), 403);
  EXPECT_EQ(BodyOf(known), "HTTP 403: `eve` may not look\n");
  EXPECT_THAT(known, Not(HasSubstr("WWW-Authenticate")));
  EXPECT_EQ(CodeOf(ask("/missing", "")), 401) << "what there is is nobody's business";
  EXPECT_EQ(CodeOf(ask("/missing", "good")), 404);
  EXPECT_EQ(BodyOf(ask("/healthz", "")), "alive");
  EXPECT_EQ(BodyOf(ask("/", "")), "page");
  EXPECT_EQ(CodeOf(ask("/healthz/", "")), 401);
  EXPECT_EQ(CodeOf(AskRaw(server_->port(), "HEAD /metrics HTTP/1.1\r\n\r\n")), 401);
}

TEST_F(HttpSecurityTest, APostIsJudgedOnceBeforeItsBodyComes) {
  std::atomic<int> judged = 0;
  HttpServer::Security security;
  security.check = [&judged](const HttpRequest& request) {
    ++judged;
    EXPECT_EQ(request.path, "/echo");
    EXPECT_EQ(request.body, "");
    return request.token == "good" ? absl::OkStatus() : absl::UnauthenticatedError("who are you?");
  };
  HttpServer::Posts posts;
  posts.paths["/echo"] = [](const HttpRequest& request) { return HttpResponse{.body = "got " + request.body}; };
  posts.body_bytes_max = 1000;
  auto server = HttpServer::Start("127.0.0.1:0", {}, std::move(posts), std::move(security), timeout_);
  ASSERT_TRUE(server.ok()) << server.status();
  const auto ask = [&server](const std::string& headers, size_t bytes) {
    return AskRaw((*server)->port(), absl::StrCat("POST /echo HTTP/1.1\r\nHost: test\r\n", headers,
                                                  "Content-Length: ", bytes, "\r\n\r\n", std::string(bytes, 'b')));
  };
  EXPECT_EQ(BodyOf(ask("Authorization: Bearer good\r\n", 3)), "got bbb");
  EXPECT_EQ(judged, 1);
  EXPECT_EQ(BodyOf(ask("", 1000)), "HTTP 401: who are you?\n");
  EXPECT_EQ(CodeOf(ask("", 2000)), 401);
  EXPECT_EQ(judged, 3);
}

TEST_F(HttpSecurityTest, TlsIsSpokenWithACertificateAndNothingElse) {
  ASSERT_NO_FATAL_FAILURE(StartTls(/*client_certificates=*/false));
  EXPECT_EQ(Ask("/metrics", authority_), std::pair(200, std::string("numbers")));
  EXPECT_EQ(Ask("/metrics", other_authority_).first, 0);
  EXPECT_EQ(CodeOf(Get(server_->port(), "/metrics")), 0) << "not in the clear";
  const auto [code, body] = Ask("/big", authority_);
  EXPECT_EQ(code, 200);
  EXPECT_EQ(body.size(), kPageBytes);
}

TEST_F(HttpSecurityTest, ThoseWhoAreSlowToAgreeOnTlsHoldNobodyUp) {
  timeout_ = std::chrono::hours(24);
  ASSERT_NO_FATAL_FAILURE(StartTls(/*client_certificates=*/false));
  std::vector<HttpConnection> slow;
  for (size_t i = 0; i < 4 * limits::kHttpThreads; ++i) {
    slow.emplace_back(server_->port());
    ASSERT_TRUE(slow.back().connected());
    if (i % 2 == 1) {
      ASSERT_TRUE(slow.back().Send("\x16\x03\x01"));  // A hello begins so.
    }
  }
  EXPECT_EQ(Ask("/metrics", authority_), std::pair(200, std::string("numbers")));
  for (const HttpConnection& connection : slow) EXPECT_FALSE(connection.Readable(0)) << "is cut off";
}

TEST_F(HttpSecurityTest, ProbesAnswerInTheirTimeWhile200TlsConnectionsAreSlow) {
  timeout_ = std::chrono::hours(24);
  ASSERT_NO_FATAL_FAILURE(StartTls(/*client_certificates=*/false));
  std::vector<HttpConnection> slow;
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(slow.emplace_back(server_->port()).connected());
    if (i % 2 == 1) {
      ASSERT_TRUE(slow.back().Send("\x16\x03\x01"));
    }
  }
  for (int probe = 0; probe < 20; ++probe) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(Ask("/healthz", authority_), std::pair(200, std::string("alive")));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  }
}

TEST_F(HttpSecurityTest, WithClientCertificatesTheyAreAskedForButNotOfProbes) {
  ASSERT_NO_FATAL_FAILURE(StartTls(/*client_certificates=*/true));
  const v1::SecurityConfig alice = ConfigOf("alice", authority_), mallory = ConfigOf("mallory", other_authority_);
  EXPECT_EQ(Ask("/who", authority_, alice), std::pair(200, std::string("1 alice,alice.example")));
  EXPECT_EQ(Ask("/healthz", authority_), std::pair(200, std::string("alive")));
  EXPECT_EQ(Ask("/metrics", authority_).first, 401);
  EXPECT_EQ(Ask("/healthz", authority_, mallory).first, 0) << "a wrong one is worse than none";
}

TEST_F(HttpSecurityTest, ACertificateThatWasReplacedIsServedToTheNextConnection) {
  ASSERT_NO_FATAL_FAILURE(StartTls(/*client_certificates=*/false));
  ASSERT_EQ(Ask("/", authority_).first, 200);
  const TestAuthority::Issued other = other_authority_.Issue({.common_name = "ps"});
  // Between the two the key is not the certificate's: what was there before is served on.
  PutFile(config_.certificate(), other.certificate);
  EXPECT_EQ(Ask("/", authority_).first, 200);
  PutFile(config_.key(), other.key);
  while (Ask("/", other_authority_).first != 200) {
  }
  EXPECT_EQ(Ask("/", authority_).first, 0);
}

}  // namespace
}  // namespace lodestone
