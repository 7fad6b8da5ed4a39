#include "server/coordinator/control_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/io/machine_limits.h"
#include "common/rpc/tuning.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

// A Join that holds its thread until it may go on.
class HoldingService final : public v1::Coordinator::CallbackService {
 public:
  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context, const v1::JoinRequest*,
                                 v1::JoinResponse*) override {
    ++held;
    go_on.wait();
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  std::atomic<size_t> held{0};
  std::latch go_on{1};
};

class Methods final : public ControlMethods {
 public:
  void HandleHeartbeat(const grpc::ServerContextBase&, const v1::HeartbeatRequest& request,
                       v1::HeartbeatResponse* response, Done done) override {
    response->set_route_epoch(request.incarnation());
    done(absl::OkStatus());
  }
  void HandleRoute(const grpc::ServerContextBase&, const v1::RouteRequest&, v1::RouteResponse*, Done done) override {
    done(absl::UnavailableError("one is missing"));
  }
  // Answered later.
  void HandleReportSync(const grpc::ServerContextBase&, const v1::ReportSyncRequest&, v1::ReportSyncResponse*,
                        Done done) override {
    report = std::move(done);
    reported.count_down();
  }
  Done report;
  std::latch reported{1};
};

class ControlServiceTest : public testing::Test {
 protected:
  ControlServiceTest() {
    grpc::ServerBuilder builder;
    service_.Register(&builder);
    server_ = builder.BuildAndStart();
    service_.Start();
    stub_ = v1::Coordinator::NewStub(server_->InProcessChannel({}));
  }
  ~ControlServiceTest() override {
    server_->Shutdown();
    service_.Shutdown();
  }

  grpc::Status Heartbeat(uint64_t incarnation, v1::HeartbeatResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation);
    return stub_->Heartbeat(&context, request, response);
  }

  HoldingService others_;
  Methods methods_;
  ControlService service_{&methods_, &others_, CallbackThreadsAreBusy};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

TEST_F(ControlServiceTest, AnswersHeartbeatsWhileEveryCallbackThreadIsHeldUp) {
  const size_t threads = std::clamp<size_t>(MachineCores() / 2, 1, 16) + 1;
  std::vector<std::thread> callers;
  for (size_t i = 0; i < threads; ++i) {
    callers.emplace_back([&] {
      grpc::ClientContext context;
      v1::JoinResponse response;
      EXPECT_TRUE(stub_->Join(&context, {}, &response).ok());
    });
  }
  while (others_.held < threads) std::this_thread::yield();
  for (uint64_t i = 1; i <= 20; ++i) {
    v1::HeartbeatResponse response;
    const grpc::Status status = Heartbeat(i, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.route_epoch(), i);
  }
  others_.go_on.count_down();
  for (std::thread& caller : callers) caller.join();
}

TEST_F(ControlServiceTest, TellsTheErrorOfAMethod) {
  grpc::ClientContext context;
  v1::RouteResponse response;
  const grpc::Status status = stub_->Route(&context, {}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "one is missing");
}

TEST_F(ControlServiceTest, ACallThatWaitsHoldsUpNoOther) {
  std::thread reporter([&] {
    grpc::ClientContext context;
    v1::ReportSyncResponse response;
    EXPECT_TRUE(stub_->ReportSync(&context, {}, &response).ok());
  });
  methods_.reported.wait();
  v1::HeartbeatResponse response;
  EXPECT_TRUE(Heartbeat(1, &response).ok());
  methods_.report(absl::OkStatus());
  reporter.join();
}

}  // namespace
}  // namespace lodestone::server
