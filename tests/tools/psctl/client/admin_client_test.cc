#include "tools/psctl/client/admin_client.h"

#include <atomic>
#include <latch>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "tools/psctl/text/exit_code.h"

namespace lodestone::psctl {
namespace {

using testing::HasSubstr;
using testing::Not;

// A ps that knows its uptime in calls.
class CountingAdmin final : public v1::Admin::Service {
 public:
  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*, v1::StatusResponse* response) override {
    response->mutable_server()->set_pulls(++calls_);
    if (calls_ == 3) third_call_.count_down();
    return grpc::Status::OK;
  }
  std::atomic<uint64_t> calls_{0};
  std::latch third_call_{1};
};

// A ps that says that it is not available, or nothing until it is let go on.
class SullenAdmin final : public v1::Admin::Service {
 public:
  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*, v1::StatusResponse*) override {
    return {grpc::StatusCode::UNAVAILABLE, "not now"};
  }
  grpc::Status Events(grpc::ServerContext*, const v1::EventsRequest*, v1::EventsResponse*) override {
    go_on_.wait();
    return grpc::Status::OK;
  }
  grpc::Status Checkpoint(grpc::ServerContext*, const v1::CheckpointRequest*, v1::CheckpointResponse*) override {
    go_on_.wait();
    return grpc::Status::OK;
  }
  std::latch go_on_{1};
};

// `service` on a port of this machine.
struct RunningServer {
  explicit RunningServer(grpc::Service* service) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service);
    server = builder.BuildAndStart();
    address = "127.0.0.1:" + std::to_string(port);
  }
  std::unique_ptr<grpc::Server> server;
  std::string address;
};

TEST(FetchStatus, ReturnsWhatThePsSays) {
  CountingAdmin admin;
  RunningServer running(&admin);
  const absl::StatusOr<v1::StatusResponse> status = FetchStatus(running.address, 10'000);
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->server().pulls(), 1u);
}

TEST(FetchStatus, NamesTheAddressWhereNothingListens) {
  std::string address;
  {
    CountingAdmin admin;
    address = RunningServer(&admin).address;  // Its port is free again.
  }
  const absl::StatusOr<v1::StatusResponse> status = FetchStatus(address, 10'000);
  ASSERT_FALSE(status.ok());
  EXPECT_TRUE(IsUnreachable(status.status()));
  EXPECT_THAT(std::string(status.status().message()),
              HasSubstr("no ps answers at " + address + ": Connection refused. Does one run there?"));
}

TEST(FetchStatus, NamesAHostThatThereIsNot) {
  const absl::StatusOr<v1::StatusResponse> status = FetchStatus("no-such-host.invalid:7000", 60'000);
  EXPECT_TRUE(IsUnreachable(status.status())) << status.status();
  EXPECT_THAT(std::string(status.status().message()), HasSubstr("no ps answers at no-such-host.invalid:7000: "));
}

// What is said of a call that has failed with gRPC's `message` before there was a connection.
std::string TextOf(const std::string& message) {
  const absl::Status status =
      ErrorOfCall({grpc::StatusCode::UNAVAILABLE, message}, "there:7080", 1000, ConnectTo("127.0.0.1:1").get());
  EXPECT_TRUE(IsUnreachable(status)) << status;
  return std::string(status.message());
}

TEST(ErrorOfCall, AnHttpPortIsNamedAsSuch) {
  const std::string text = TextOf(
      "failed to connect to all addresses; last error: INTERNAL: ipv4:127.0.0.1:7080: Trying to connect an http1.x "
      "server");
  EXPECT_THAT(text, HasSubstr("there:7080 is an HTTP port"));
  EXPECT_THAT(text, HasSubstr("server.listen"));
  EXPECT_THAT(text, Not(HasSubstr("http1.x")));
}

TEST(ErrorOfCall, AnUnknownNameIsAnsweredWithoutTheResolversWords) {
  const std::string text = TextOf(
      "DNS resolution failed for there:7080: C-ares status is not ARES_SUCCESS qtype=AAAA name=there is_balancer=0: "
      "Domain name not found");
  EXPECT_THAT(text, HasSubstr("no ps answers at there:7080: the name is not known here"));
  EXPECT_THAT(text, Not(HasSubstr("ARES")));
}

TEST(FetchStatus, APsThatSaysThatItIsUnavailableIsThere) {
  SullenAdmin admin;
  RunningServer running(&admin);
  const absl::Status status = FetchStatus(running.address, 60'000).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_FALSE(IsUnreachable(status));
  EXPECT_EQ(status.message(), "the ps at " + running.address + ": not now");
}

TEST(FetchStatus, OneThatDoesNotAnswerTimesOut) {
  SullenAdmin admin;
  RunningServer running(&admin);
  const absl::StatusOr<v1::EventsResponse> events = FetchEvents(running.address, 0, 50);
  EXPECT_TRUE(absl::IsDeadlineExceeded(events.status()));
  EXPECT_EQ(events.status().message(), "no ps answers at " + running.address + " within 50 ms (--timeout)");
  admin.go_on_.count_down();
}

TEST(RequestCheckpoint, SaysThatItMayStillBeWritten) {
  SullenAdmin admin;
  RunningServer running(&admin);
  const absl::Status status = RequestCheckpoint(running.address, "mine", 50).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status));
  EXPECT_EQ(status.message(),
            "the ps at " + running.address + " has not written it within 50 ms (--timeout); it may still do so");
  admin.go_on_.count_down();
}

TEST(FetchStatus, TellsAServerThatIsNoPs) {
  v1::Coordinator::Service other;
  RunningServer running(&other);
  const absl::StatusOr<v1::StatusResponse> status = FetchStatus(running.address, 10'000);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.status().message()), HasSubstr("is no ps"));
}

TEST(StatusPoller, KeepsAskingAndGivesEachAnswerOnce) {
  CountingAdmin admin;
  RunningServer running(&admin);
  uint64_t newest = 0;
  {
    StatusPoller poller(running.address, 1);
    admin.third_call_.wait();
    while (newest < 2) {
      if (const std::optional<v1::StatusResponse> status = poller.Take()) {
        EXPECT_GT(status->server().pulls(), newest);
        newest = status->server().pulls();
      }
    }
  }
  EXPECT_GE(newest, 2u);
}

TEST(StatusPoller, EndsWhileNothingAnswers) {
  StatusPoller poller("127.0.0.1:1", 10);
  EXPECT_FALSE(poller.Take().has_value());
}

}  // namespace
}  // namespace lodestone::psctl
