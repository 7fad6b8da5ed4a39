#include "common/http/http_server.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/http/http_client.h"

namespace lodestone {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr size_t kBigBytes = 15 << 20;         // More than the system keeps of what nobody reads.
constexpr std::chrono::hours kNever(24);       // Nobody is cut off for being slow while a test runs.
constexpr std::chrono::milliseconds kSoon(1);  // Everybody is.

HttpServer::Handler Says(std::string body) {
  return [body = std::move(body)](const HttpRequest&) { return HttpResponse{.body = body}; };
}

std::unique_ptr<HttpServer> StartOrFail(HttpServer::Paths paths, const std::string& listen = "127.0.0.1:0") {
  auto server = HttpServer::Start(listen, std::move(paths));
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

std::unique_ptr<HttpServer> StartOrFail(HttpServer::Paths paths, std::chrono::milliseconds timeout) {
  auto server = HttpServer::Start("127.0.0.1:0", std::move(paths), {}, timeout);
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

// Answers with what it understood.
HttpResponse Echo(const HttpRequest& request) {
  HttpResponse response;
  response.body = absl::StrCat(request.path, " token=", request.token);
  for (const auto& [name, value] : request.parameters) absl::StrAppend(&response.body, " ", name, "=", value);
  return response;
}

TEST(HttpServer, HandsOnPathParametersAndToken) {
  const auto server = StartOrFail({{"/echo", Echo}});
  ASSERT_NE(server, nullptr);
  EXPECT_NE(server->port(), 0);
  const std::string answer = Get(server->port(), "/echo?b=two%20words&a=1&a=2", "Authorization: Bearer abc.def\r\n");
  EXPECT_EQ(CodeOf(answer), 200);
  EXPECT_EQ(BodyOf(answer), "/echo token=abc.def a=1 b=two words");
  EXPECT_EQ(BodyOf(Get(server->port(), "/echo", "Authorization: Basic abc\r\n")), "/echo token=");
}

TEST(HttpServer, AnswersWithTheHandlersCodeAndType) {
  const auto server = StartOrFail({{"/no", [](const HttpRequest&) {
                                      return HttpResponse{503, "application/json", "{\"ready\": false}"};
                                    }}});
  ASSERT_NE(server, nullptr);
  const std::string answer = Get(server->port(), "/no");
  EXPECT_EQ(CodeOf(answer), 503);
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(answer, HasSubstr("Cache-Control: no-store\r\n"));
  EXPECT_EQ(BodyOf(answer), "{\"ready\": false}");
}

TEST(HttpServer, HeadGetsTheHeadersAlone) {
  const auto server = StartOrFail({{"/page", Says("12345")}});
  ASSERT_NE(server, nullptr);
  const std::string answer = AskRaw(server->port(), "HEAD /page HTTP/1.1\r\n\r\n");
  EXPECT_EQ(CodeOf(answer), 200);
  EXPECT_THAT(answer, HasSubstr("Content-Length: 5\r\n"));
  EXPECT_EQ(BodyOf(answer), "");
}

TEST(HttpServer, APathIsTakenLiterally) {
  const auto server = StartOrFail({{"/page.js", Says("script")}});
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(CodeOf(Get(server->port(), "/page.js")), 200);
  for (const char* other : {"/pagexjs", "/page.jsx", "/page.js/", "//page.js", "/../page.js"}) {
    const std::string answer = Get(server->port(), other);
    EXPECT_EQ(CodeOf(answer), 404) << other;
    EXPECT_EQ(BodyOf(answer), absl::StrCat("HTTP 404: there is nothing at ", other, "\n"));
  }
}

TEST(HttpServer, OtherMethodsAreRefusedWithTheirBody) {
  const auto server = StartOrFail({{"/page", Says("text")}});
  ASSERT_NE(server, nullptr);
  for (const char* method : {"POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}) {
    const std::string answer =
        AskRaw(server->port(),
               absl::StrCat(method, " /page HTTP/1.1\r\nContent-Length: 4000\r\n\r\n", std::string(4000, 'x')));
    EXPECT_EQ(CodeOf(answer), 405) << method;
    EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD\r\n"));
    EXPECT_THAT(answer, HasSubstr(absl::StrCat("HTTP 405: ", method, " is not served here")));
  }
}

// A server whose path /echo answers a POST with its body, of 1000 bytes at most.
std::unique_ptr<HttpServer> StartEcho() {
  HttpServer::Posts posts;
  posts.paths["/echo"] = [](const HttpRequest& request) { return HttpResponse{.body = "got " + request.body}; };
  posts.body_bytes_max = 1000;
  auto server = HttpServer::Start("127.0.0.1:0", {{"/page", Says("text")}}, std::move(posts), {});
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

std::string Post(uint16_t port, const std::string& path, const std::string& body) {
  return AskRaw(
      port, absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: test\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
}

TEST(HttpServer, APostHandsOnItsBodyWholeOrInChunks) {
  const auto server = StartEcho();
  ASSERT_NE(server, nullptr);
  const std::string body(1000, 'b');
  EXPECT_EQ(BodyOf(Post(server->port(), "/echo", body)), "got " + body);
  EXPECT_EQ(BodyOf(Post(server->port(), "/echo", "")), "got ");
  EXPECT_EQ(BodyOf(AskRaw(server->port(),
                          "POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
                          "3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n")),
            "got abcdefg");
}

TEST(HttpServer, ABodyThatIsTooLongIsRefusedWhateverItsLength) {
  const auto server = StartEcho();
  ASSERT_NE(server, nullptr);
  for (const size_t bytes : {size_t{1001}, size_t{200'000}, size_t{2'000'000}}) {
    const std::string answer =
        AskRaw(server->port(), absl::StrCat("POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: ", bytes, "\r\n\r\n",
                                            std::string(bytes > 1'000'000 ? 0 : bytes, 'x')));
    EXPECT_EQ(CodeOf(answer), 413) << bytes;
    EXPECT_THAT(answer, HasSubstr("more than 1000 bytes"));
  }
  const std::string chunks =
      AskRaw(server->port(), absl::StrCat("POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n"
                                          "7d0\r\n",
                                          std::string(2000, 'x'), "\r\n0\r\n\r\n"));
  EXPECT_EQ(CodeOf(chunks), 413);
  EXPECT_EQ(BodyOf(Post(server->port(), "/echo", "next")), "got next");
}

// Regression: four long bodies that did not come to their end had all other requests refused meanwhile.
TEST(HttpServer, ShortBodiesAreTakenWhileLongOnesTakeAllTheRoom) {
  constexpr size_t kLong = 1 << 20;
  HttpServer::Posts posts;
  posts.paths["/size"] = [](const HttpRequest& request) {
    return HttpResponse{.body = absl::StrCat(request.body.size())};
  };
  posts.body_bytes_max = kLong;
  const auto server = HttpServer::Start("127.0.0.1:0", {}, std::move(posts), {}, std::chrono::hours(1));
  ASSERT_TRUE(server.ok()) << server.status();
  const uint16_t port = (*server)->port();
  std::vector<HttpConnection> stalled;
  do {  // Of some nothing is kept: those that come while another long one does.
    stalled.emplace_back(port);
    ASSERT_TRUE(stalled.back().Send(absl::StrCat("POST /size HTTP/1.1\r\nHost: test\r\nContent-Length: ", kLong,
                                                 "\r\n\r\n", std::string(kLong - 1, 'x'))));
  } while (CodeOf(Post(port, "/size", std::string(kLong, 'x'))) != 503);
  EXPECT_EQ(BodyOf(Post(port, "/size", std::string(60'000, 'x'))), "60000");
  stalled.clear();
  while (BodyOf(Post(port, "/size", std::string(kLong, 'x'))) != absl::StrCat(kLong)) {
  }
}

TEST(HttpServer, APathTakesPostOrTheOtherMethodsAndNotBoth) {
  const auto server = StartEcho();
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(CodeOf(Post(server->port(), "/page", "x")), 405);
  const std::string answer = Get(server->port(), "/echo");
  EXPECT_EQ(CodeOf(answer), 405);
  EXPECT_THAT(answer, HasSubstr("Allow: POST\r\n"));
  EXPECT_EQ(BodyOf(Get(server->port(), "/page")), "text");
}

TEST(HttpServer, WhatIsNoRequestIsRefusedAndTheNextOneServed) {
  std::atomic<int> handled = 0;
  const auto server = StartOrFail({{"/page", [&](const HttpRequest&) {
                                      ++handled;
                                      return HttpResponse{.body = "text"};
                                    }}});
  ASSERT_NE(server, nullptr);
  const std::string none("\0\0\0\0\r\n\r\n", 8);
  const std::string tls("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 15);
  int served = 0;
  // With the code of what is wrong with it; 0: the connection is closed without an answer.
  const std::pair<std::string_view, int> requests[] = {{"nonsense\r\n\r\n", 0},
                                                       {"nonsense\r\n", 0},
                                                       {"GET\r\n\r\n", 0},
                                                       {none, 0},
                                                       {tls, 0},
                                                       {"GET /page HTTP/9.9\r\n\r\n", 505},
                                                       {"\r\n\r\n", 0},
                                                       {"GET /page HTTP/1.1\n", 0},
                                                       {"\r\n", 0},
                                                       {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
                                                       {"get /page http/1.1\r\n\r\n", 400}};
  for (const auto& [request, code] : requests) {
    HttpConnection connection(server->port());
    ASSERT_TRUE(connection.Send(request));
    connection.EndSending();
    const std::string answer = connection.ReadAll();
    EXPECT_EQ(CodeOf(answer), code) << request;
    EXPECT_EQ(answer.empty(), code == 0) << request;
    EXPECT_EQ(handled.load(), served) << request;
    EXPECT_EQ(BodyOf(Get(server->port(), "/page")), "text");
    ++served;
  }
  HttpConnection(server->port());  // Nothing at all.
  EXPECT_EQ(BodyOf(Get(server->port(), "/page")), "text");
}

TEST(HttpServer, ARequestThatIsTooLongIsNotReadToItsEnd) {
  const auto server = StartOrFail({{"/page", Says("text")}});
  ASSERT_NE(server, nullptr);
  const std::string fits = absl::StrCat("X-Long: ", std::string(limits::kHttpRequestBytesMax / 2, 'x'), "\r\n");
  EXPECT_EQ(CodeOf(Get(server->port(), "/page", fits)), 200);
  EXPECT_EQ(CodeOf(Get(server->port(), "/page", absl::StrCat(fits, fits))), 400);
  const std::string long_path = Get(server->port(), absl::StrCat("/", std::string(limits::kHttpRequestBytesMax, 'x')));
  EXPECT_EQ(CodeOf(long_path), 400);
  EXPECT_THAT(BodyOf(long_path), HasSubstr(absl::StrCat("more than ", limits::kHttpRequestBytesMax, " bytes")));
  // Headers without an end: sooner or later nobody takes them.
  HttpConnection endless(server->port());
  ASSERT_TRUE(endless.Send("GET /page HTTP/1.1\r\n"));
  while (endless.Send("X-More: of it\r\n")) {
  }
}

TEST(HttpServer, AHandfulOfBytesDoesNotMakeItSendGigabytes) {
  const auto server = StartOrFail({{"/page", Says(std::string(1000, 'x'))}});
  ASSERT_NE(server, nullptr);
  std::string ranges = "Range: bytes=0-";
  for (int i = 0; i < 1000; ++i) ranges += ",0-";
  const std::string answer = Get(server->port(), "/page", ranges + "\r\n");
  EXPECT_EQ(CodeOf(answer), 200);
  EXPECT_EQ(BodyOf(answer).size(), 1000u);
}

TEST(HttpServer, CompressesForWhoTakesGzip) {
  const auto server = StartOrFail({{"/page", Says(std::string(100'000, 'x'))}});
  ASSERT_NE(server, nullptr);
  const std::string answer = Get(server->port(), "/page", "Accept-Encoding: br, gzip\r\n");
  EXPECT_THAT(answer, HasSubstr("Content-Encoding: gzip\r\n"));
  EXPECT_LT(answer.size(), 2000u);
  EXPECT_THAT(Get(server->port(), "/page", "Accept-Encoding: br\r\n"), Not(HasSubstr("Content-Encoding")));
}

TEST(HttpServer, AnswersSeveralAtATime) {
  std::latch all_inside(limits::kHttpThreads);
  const auto server = StartOrFail({{"/wait", [&](const HttpRequest&) {
                                      all_inside.arrive_and_wait();
                                      return HttpResponse{.body = "done"};
                                    }}});
  ASSERT_NE(server, nullptr);
  std::vector<std::string> answers(limits::kHttpThreads);
  std::vector<std::thread> clients;
  for (std::string& answer : answers) {
    clients.emplace_back([&] { answer = BodyOf(Get(server->port(), "/wait")); });
  }
  for (std::thread& client : clients) client.join();
  for (const std::string& answer : answers) EXPECT_EQ(answer, "done");
}

TEST(HttpServer, WhoSendsAByteNowAndThenIsCutOff) {
  const auto server = StartOrFail({{"/page", Says("text")}});
  ASSERT_NE(server, nullptr);
  HttpConnection slow(server->port());
  ASSERT_TRUE(slow.Send("GET /page HTTP/1.1\r\nX-Slow: "));
  while (!slow.Readable(100) && slow.Send("z")) {  // Without a limit on the whole it would go on for minutes.
  }
  EXPECT_EQ(slow.ReadAll(), "");
}

TEST(HttpServer, WhoSendsNothingIsCutOff) {
  const auto server = StartOrFail({{"/page", Says("text")}}, kSoon);
  ASSERT_NE(server, nullptr);
  EXPECT_EQ(HttpConnection(server->port()).ReadAll(), "");
}

TEST(HttpServer, WhoDoesNotTakeItsAnswerIsCutOff) {
  const auto server = StartOrFail({{"/big", Says(std::string(kBigBytes, 'x'))}});
  ASSERT_NE(server, nullptr);
  HttpConnection sleeper(server->port());
  ASSERT_TRUE(sleeper.Send("GET /big HTTP/1.1\r\n\r\n"));
  sleeper.AwaitReset();
}

TEST(HttpServer, ThoseWhoAreSlowToAskHoldNobodyUp) {
  const auto server = StartOrFail({{"/page", Says("text")}}, kNever);
  ASSERT_NE(server, nullptr);
  std::vector<HttpConnection> slow;
  for (size_t i = 0; i < 4 * limits::kHttpThreads; ++i) {
    slow.emplace_back(server->port());
    ASSERT_TRUE(slow.back().connected());
    if (i % 2 == 1) {
      ASSERT_TRUE(slow.back().Send("GET /page HTTP/1.1\r\nX-Slow: "));
    }
  }
  EXPECT_EQ(BodyOf(Get(server->port(), "/page")), "text");
  for (HttpConnection& connection : slow) EXPECT_FALSE(connection.Readable(0)) << "is cut off";
  // Byte by byte they get there.
  for (size_t i = 1; i < slow.size(); i += 2) {
    for (const char* byte : {"z", "\r", "\n", "\r"}) {
      ASSERT_TRUE(slow[i].Send(byte));
      EXPECT_EQ(CodeOf(Get(server->port(), "/page")), 200);
    }
    ASSERT_TRUE(slow[i].Send("\n"));
    EXPECT_EQ(BodyOf(slow[i].ReadAll()), "text");
  }
}

TEST(HttpServer, ThoseWhoDoNotTakeTheirAnswersHoldNobodyUp) {
  const auto server = StartOrFail({{"/big", Says(std::string(kBigBytes, 'x'))}, {"/page", Says("text")}}, kNever);
  ASSERT_NE(server, nullptr);
  std::vector<HttpConnection> sleepers;
  for (size_t i = 0; i < limits::kHttpThreads; ++i) {
    ASSERT_TRUE(sleepers.emplace_back(server->port()).Send("GET /big HTTP/1.1\r\n\r\n"));
    ASSERT_TRUE(sleepers.back().Readable(-1));
  }
  EXPECT_EQ(BodyOf(Get(server->port(), "/page")), "text");
  EXPECT_EQ(BodyOf(sleepers.front().ReadAll()).size(), kBigBytes);
  // There is memory for a few of them: of more, the oldest goes.
  for (size_t i = 0; i < limits::kHttpThreads; ++i) {
    ASSERT_TRUE(sleepers.emplace_back(server->port()).Send("GET /big HTTP/1.1\r\n\r\n"));
    ASSERT_TRUE(sleepers.back().Readable(-1));
  }
  sleepers[1].AwaitReset();
  EXPECT_EQ(BodyOf(Get(server->port(), "/page")), "text");
}

// Half of them send half a header, half do not read their answer, of which the system keeps a part only.
TEST(HttpServer, ReadyzAnswersInItsTimeWhile200ConnectionsAreSlow) {
  constexpr std::chrono::seconds kProbeTimeout(1);  // As Kubernetes' default.
  const auto server =
      StartOrFail({{"/big", Says(std::string(kBigBytes / 50, 'x'))}, {"/readyz", Says("ready\n")}}, kNever);
  ASSERT_NE(server, nullptr);
  std::vector<HttpConnection> slow;
  for (int i = 0; i < 200; ++i) {
    ASSERT_TRUE(slow.emplace_back(server->port(), /*receive_buffer_bytes=*/4096).connected());
    ASSERT_TRUE(slow.back().Send(i % 2 == 0 ? "GET /big HTTP/1.1\r\nX-Slow: " : "GET /big HTTP/1.1\r\n\r\n"));
  }
  for (int probe = 0; probe < 50; ++probe) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(BodyOf(Get(server->port(), "/readyz")), "ready\n");
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kProbeTimeout);
  }
  for (size_t i = 0; i < slow.size(); i += 2) EXPECT_FALSE(slow[i].Readable(0)) << "is cut off";
  // And every one of them gets its answer in the end.
  for (size_t i = 0; i < slow.size(); ++i) {
    if (i % 2 == 0) {
      ASSERT_TRUE(slow[i].Send("z\r\n\r\n"));
    }
    EXPECT_EQ(BodyOf(slow[i].ReadAll()).size(), kBigBytes / 50) << i;
  }
}

TEST(HttpServer, OfTooManyConnectionsTheOldestIsClosed) {
  const auto server = StartOrFail({{"/page", Says("text")}}, kNever);
  ASSERT_NE(server, nullptr);
  std::vector<HttpConnection> idle;
  for (int i = 0; i < 500; ++i) idle.emplace_back(server->port());
  EXPECT_EQ(idle.front().ReadAll(), "");
  EXPECT_EQ(BodyOf(Get(server->port(), "/page")), "text");
  EXPECT_FALSE(idle.back().Readable(0)) << "is cut off";
}

// libmicrohttpd asks the system for 128 events at a time, and its own loop waits for ever after as many.
TEST(HttpServer, StopsWhileAFull128OfEventsWaitForIt) {
  constexpr sched_param kPriority = {};
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  ASSERT_EQ(sched_setscheduler(0, SCHED_IDLE, &kPriority), 0);
  for (const int closing : {126, 127, 128, 255}) {  // Stop is an event, too.
    const auto server = StartOrFail({{"/page", Says("text")}}, kNever);
    ASSERT_NE(server, nullptr);
    std::vector<HttpConnection> idle;
    for (int i = 0; i < closing; ++i) idle.emplace_back(server->port());
    EXPECT_EQ(BodyOf(Get(server->port(), "/page")), "text");
    // Its threads run only while this one sleeps, unless this may not have its priority back.
    sched_setscheduler(0, SCHED_OTHER, &kPriority);
    idle.clear();
    server->Stop();
    sched_setscheduler(0, SCHED_IDLE, &kPriority);
  }
  sched_setscheduler(0, SCHED_OTHER, &kPriority);
  sched_setaffinity(0, sizeof(before), &before);
}

TEST(HttpServer, StopLetsWhatIsUnderWayEnd) {
  std::latch inside(1), go_on(1);
  const auto server = StartOrFail({{"/wait", [&](const HttpRequest&) {
                                      inside.count_down();
                                      go_on.wait();
                                      return HttpResponse{.body = "done"};
                                    }}});
  ASSERT_NE(server, nullptr);
  std::string answer;
  std::thread client([&] { answer = Get(server->port(), "/wait"); });
  inside.wait();
  std::thread stopper([&] { server->Stop(); });
  while (HttpConnection(server->port()).connected()) std::this_thread::yield();
  std::thread second_stopper([&] { server->Stop(); });
  go_on.count_down();
  client.join();
  stopper.join();
  second_stopper.join();
  EXPECT_THAT(answer, EndsWith("\r\n\r\ndone"));
}

TEST(HttpServer, StopDoesNotWaitForWhoIsStillSending) {
  const auto server = StartOrFail({{"/page", Says("text")}}, kNever);
  ASSERT_NE(server, nullptr);
  std::vector<HttpConnection> sending;
  for (size_t i = 0; i < 16 * limits::kHttpThreads; ++i) {
    ASSERT_TRUE(sending.emplace_back(server->port()).Send("GET /pa"));
  }
  server->Stop();  // To wait until they are cut off would take more time than the test has.
  server->Stop();
  for (HttpConnection& connection : sending) connection.ReadAll();
}

TEST(HttpServer, AnAddressThatIsTakenIsUnavailable) {
  const auto first = StartOrFail({});
  ASSERT_NE(first, nullptr);
  const std::string address = absl::StrCat("127.0.0.1:", first->port());
  const auto second = HttpServer::Start(address, {});
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_EQ(second.status().message(), absl::StrCat("cannot listen on ", address, ": Address already in use"));
}

TEST(HttpServer, AnAddressOfAnotherMachineIsUnavailable) {
  const auto server = HttpServer::Start("192.0.2.1:0", {});  // Nobody's (RFC 5737).
  EXPECT_TRUE(absl::IsUnavailable(server.status())) << server.status();
  EXPECT_EQ(server.status().message(), "cannot listen on 192.0.2.1:0: Cannot assign requested address");
}

TEST(HttpServer, WhatIsNoAddressIsRefused) {
  for (const char* listen : {"", "7080", "here:there", "127.0.0.1:70800", "::1:80"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(HttpServer::Start(listen, {}).status())) << listen;
  }
}

TEST(HttpServer, AWildcardIsReachedByIpv4) {
  for (const char* listen : {":0", "*:0", "0.0.0.0:0", "[::]:0"}) {
    const auto server = HttpServer::Start(listen, {{"/page", Says("text")}});
    if (std::string(listen) == "[::]:0" && !server.ok()) continue;  // No IPv6 here.
    ASSERT_TRUE(server.ok()) << server.status();
    EXPECT_EQ(BodyOf(Get((*server)->port(), "/page")), "text") << listen;
  }
}

}  // namespace
}  // namespace lodestone
