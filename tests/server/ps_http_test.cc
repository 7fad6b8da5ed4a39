// The HTTP port of a whole ps.
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "server/process.h"
#include "tests/common/http/http_client.h"
#include "tests/common/rpc/message_limit.h"
#include "tests/common/telemetry/metric_text.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/whole_process.h"

namespace lodestone::server {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// With an HTTP port of its own.
v1::Config HttpConfigOf(uint32_t servers, uint32_t index, const std::string& coordinator = "") {
  v1::Config config = ConfigOf(servers, index, coordinator);
  config.mutable_server()->set_http_listen("127.0.0.1:0");
  return config;
}

// A call that goes on until this is destroyed: reflection asks and answers for as long as its client goes on.
class OpenCall {
 public:
  explicit OpenCall(const std::string& address) : stub_(MakeChannel(address, kMessageBytesMax)) {
    call_ = stub_.PrepareCall(&context_, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue_);
    call_->StartCall(nullptr);
    EXPECT_TRUE(Next());
    call_->Write(BufferOf("\x3a\x01*"), nullptr);  // ServerReflectionRequest{list_services: "*"}.
    EXPECT_TRUE(Next());
    grpc::ByteBuffer answer;
    call_->Read(&answer, nullptr);
    EXPECT_TRUE(Next());
  }
  ~OpenCall() {
    context_.TryCancel();
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Next();
    queue_.Shutdown();
    Next();
  }

 private:
  bool Next() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

TEST(PsHttp, TellsThatItWaitsForTheOthersAndThenThatItIsReady) {
  const auto ps0 = StartOrFail(HttpConfigOf(2, 0));
  ASSERT_NE(ps0, nullptr);
  const std::string http = StatusOf(*ps0).server().http();
  ASSERT_THAT(http, StartsWith("127.0.0.1:"));
  const uint16_t port = PortIn(http);
  EXPECT_EQ(CodeOf(Get(port, "/healthz")), 200);
  std::string waiting;
  do {
    waiting = Get(port, "/readyz");
    EXPECT_EQ(CodeOf(waiting), 503);
  } while (waiting.find("has not joined") == std::string::npos);
  EXPECT_THAT(BodyOf(waiting), HasSubstr("not ready: ps 0: "));
  EXPECT_THAT(BodyOf(waiting), HasSubstr("waiting for 1 of 2 servers: index 1 has not joined"));
  const MetricText before(BodyOf(Get(port, "/metrics")));
  EXPECT_EQ(before.Of("lodestone_ps_ready"), 0);
  EXPECT_EQ(before.Of("lodestone_ps_waits"), 1);
  EXPECT_EQ(before.Of("lodestone_cluster_servers{state=\"alive\"}"), 1);

  const auto ps1 = StartOrFail(HttpConfigOf(2, 1, ps0->address()));
  ASSERT_NE(ps1, nullptr);
  ASSERT_TRUE(ps0->WaitUntilReady().ok());
  ASSERT_TRUE(ps1->WaitUntilReady().ok());
  for (const ServerProcess* ps : {ps0.get(), ps1.get()}) {
    const uint16_t of = PortIn(StatusOf(*ps).server().http());
    EXPECT_EQ(BodyOf(Get(of, "/readyz")), "ready\n");
    const MetricText metrics(BodyOf(Get(of, "/metrics")));
    EXPECT_EQ(metrics.Of("lodestone_ps_ready"), 1);
    EXPECT_EQ(metrics.Of("lodestone_ps_shards_owned"), 4);
    EXPECT_TRUE(metrics.Has("lodestone_ps_push_duration_seconds_count"));
    EXPECT_TRUE(metrics.Has("process_cpu_seconds_total"));
  }
  EXPECT_EQ(CodeOf(Get(port, "/nothing")), 404);
}

TEST(PsHttp, IsNotReadyAnyMoreOnceItIsToldToEndAndTellsThatToTheLast) {
  const auto ps = StartOrFail(HttpConfigOf(1, 0));
  ASSERT_NE(ps, nullptr);
  ASSERT_TRUE(ps->WaitUntilReady().ok());
  const uint16_t port = PortIn(StatusOf(*ps).server().http());
  ASSERT_EQ(CodeOf(Get(port, "/readyz")), 200);
  auto call = std::make_unique<OpenCall>(ps->address());
  std::thread ender([&] { ps->Shutdown(600'000); });
  std::string answer;
  do {
    answer = Get(port, "/readyz");
  } while (CodeOf(answer) == 200);
  EXPECT_EQ(CodeOf(answer), 503);
  EXPECT_EQ(BodyOf(answer), "not ready: this ps ends\n");
  EXPECT_EQ(CodeOf(Get(port, "/healthz")), 200);
  EXPECT_EQ(CodeOf(Get(port, "/metrics")), 200);
  call.reset();
  ender.join();
  EXPECT_FALSE(HttpConnection(port).connected());
}

TEST(PsHttp, ThereIsNoneUnlessItIsConfigured) {
  v1::Config config = HttpConfigOf(1, 0);
  config.mutable_server()->clear_http_listen();
  const auto ps = StartOrFail(config);
  ASSERT_NE(ps, nullptr);
  EXPECT_EQ(StatusOf(*ps).server().http(), "");
}

TEST(PsHttp, AnAddressThatCannotBeUsedEndsTheStart) {
  v1::Config config = HttpConfigOf(1, 0);
  config.mutable_server()->set_http_listen("7080");
  const auto malformed = ServerProcess::Start(config);
  EXPECT_TRUE(absl::IsInvalidArgument(malformed.status())) << malformed.status();
  EXPECT_THAT(std::string(malformed.status().message()), StartsWith("server.http_listen: `7080` is not host:port"));
  const auto first = StartOrFail(HttpConfigOf(1, 0));
  ASSERT_NE(first, nullptr);
  const std::string taken = StatusOf(*first).server().http();
  config.mutable_server()->set_http_listen(taken);
  const auto second = ServerProcess::Start(config);
  EXPECT_TRUE(absl::IsUnavailable(second.status())) << second.status();
  EXPECT_EQ(second.status().message(), absl::StrCat("cannot listen on ", taken, ": Address already in use"));
}

}  // namespace
}  // namespace lodestone::server
