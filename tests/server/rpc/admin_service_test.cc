#include "server/rpc/admin_service.h"

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using testing::HasSubstr;

// The service, asked within the process.
class AdminServer {
 public:
  explicit AdminServer(AdminService::Handlers handlers = {}) : service_(WithStatus(std::move(handlers))) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    stub_ = v1::Admin::NewStub(server_->InProcessChannel({}));
  }

  grpc::Status Checkpoint(const std::string& name, v1::CheckpointResponse* response, const std::string& removes = "") {
    grpc::ClientContext context;
    v1::CheckpointRequest request;
    request.set_name(name);
    request.set_removes(removes);
    return stub_->Checkpoint(&context, request, response);
  }
  grpc::Status Rollback(const std::string& table, const std::string& checkpoint, v1::RollbackResponse* response) {
    grpc::ClientContext context;
    v1::RollbackRequest request;
    request.set_table(table);
    if (!checkpoint.empty()) request.set_checkpoint(checkpoint);
    return stub_->Rollback(&context, request, response);
  }
  v1::EventsResponse Events(uint64_t after_id) {
    grpc::ClientContext context;
    v1::EventsRequest request;
    request.set_after_id(after_id);
    v1::EventsResponse response;
    EXPECT_TRUE(stub_->Events(&context, request, &response).ok());
    return response;
  }
  v1::HistoryResponse History() {
    grpc::ClientContext context;
    v1::HistoryResponse response;
    EXPECT_TRUE(stub_->History(&context, {}, &response).ok());
    return response;
  }
  v1::StatusResponse Status() {
    grpc::ClientContext context;
    v1::StatusResponse response;
    EXPECT_TRUE(stub_->Status(&context, {}, &response).ok());
    return response;
  }

 private:
  static AdminService::Handlers WithStatus(AdminService::Handlers handlers) {
    handlers.fill_status = [](v1::StatusResponse* status) { status->mutable_server()->set_pulls(7); };
    return handlers;
  }

  AdminService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Admin::Stub> stub_;
};

TEST(AdminService, WritesACheckpointAndAnswersStatusMeanwhile) {
  std::latch inside(1);
  std::latch go_on(1);
  std::vector<std::string> names;
  AdminServer server({.checkpoint = [&](const std::string& name) -> absl::StatusOr<v1::CheckpointResponse> {
    names.push_back(name);
    inside.count_down();
    go_on.wait();
    v1::CheckpointResponse response;
    response.set_path("/there");
    return response;
  }});
  v1::CheckpointResponse response;
  std::thread caller([&] { EXPECT_TRUE(server.Checkpoint("mine", &response).ok()); });
  inside.wait();
  EXPECT_EQ(server.Status().server().pulls(), 7u);
  v1::CheckpointResponse other;
  EXPECT_EQ(server.Checkpoint("other", &other).error_code(), grpc::StatusCode::UNAVAILABLE);
  go_on.count_down();
  caller.join();
  EXPECT_EQ(response.path(), "/there");
  EXPECT_EQ(names, std::vector<std::string>{"mine"});
}

TEST(AdminService, PassesOnWhyACheckpointFailedAndTakesTheNext) {
  int calls = 0;
  AdminServer server({.checkpoint = [&](const std::string&) -> absl::StatusOr<v1::CheckpointResponse> {
    if (++calls == 1) return absl::ResourceExhaustedError("/x/ps-0.shard-00000: writev: No space left on device");
    return v1::CheckpointResponse();
  }});
  v1::CheckpointResponse response;
  const grpc::Status failed = server.Checkpoint("", &response);
  EXPECT_EQ(failed.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(failed.error_message(), HasSubstr("No space left"));
  EXPECT_TRUE(server.Checkpoint("", &response).ok());
}

TEST(AdminService, RefusesANameThatIsNoneBeforeAnythingElse) {
  AdminService::Handlers handlers;
  handlers.check_checkpoint_name = [](const std::string& name) {
    return name == "../up" ? absl::InvalidArgumentError("not a name") : absl::OkStatus();
  };
  v1::CheckpointResponse response;
  EXPECT_EQ(AdminServer(handlers).Checkpoint("../up", &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  std::atomic<bool> called = false;
  handlers.checkpoint = [&](const std::string&) -> absl::StatusOr<v1::CheckpointResponse> {
    called = true;
    return v1::CheckpointResponse();
  };
  AdminServer server(handlers);
  EXPECT_EQ(server.Checkpoint("../up", &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(called);
  EXPECT_TRUE(server.Checkpoint("good", &response).ok());
  EXPECT_TRUE(called);
}

TEST(AdminService, SaysThatAPsWithoutAFolderWritesNone) {
  AdminServer server;
  v1::CheckpointResponse response;
  const grpc::Status status = server.Checkpoint("", &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("server.data_dir"));
}

TEST(AdminService, BringsATableBackAndWritesNoCheckpointMeanwhile) {
  std::latch inside(1);
  std::latch go_on(1);
  AdminServer server({.checkpoint = [](const std::string&) -> absl::StatusOr<v1::CheckpointResponse> {
                        return v1::CheckpointResponse();
                      },
                      .roll_back = [&](const v1::RollbackRequest& request) -> absl::StatusOr<v1::RollbackResponse> {
                        EXPECT_EQ(request.table(), "rows");
                        EXPECT_EQ(request.checkpoint(), "early");
                        inside.count_down();
                        go_on.wait();
                        v1::RollbackResponse response;
                        response.add_shards()->set_version_after(5);
                        return response;
                      }});
  v1::RollbackResponse response;
  std::thread caller([&] { EXPECT_TRUE(server.Rollback("rows", "early", &response).ok()); });
  inside.wait();
  v1::CheckpointResponse checkpoint;
  EXPECT_EQ(server.Checkpoint("", &checkpoint).error_code(), grpc::StatusCode::UNAVAILABLE);
  v1::RollbackResponse other;
  EXPECT_EQ(server.Rollback("rows", "early", &other).error_code(), grpc::StatusCode::UNAVAILABLE);
  go_on.count_down();
  caller.join();
  ASSERT_EQ(response.shards_size(), 1);
  EXPECT_EQ(response.shards(0).version_after(), 5u);
  EXPECT_TRUE(server.Checkpoint("", &checkpoint).ok());
}

TEST(AdminService, RefusesARollbackOfNoTableOrToNothing) {
  AdminServer server({.roll_back = [](const v1::RollbackRequest&) -> absl::StatusOr<v1::RollbackResponse> {
    ADD_FAILURE() << "was called";
    return v1::RollbackResponse();
  }});
  v1::RollbackResponse response;
  EXPECT_EQ(server.Rollback("", "early", &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(server.Rollback("rows", "", &response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(AdminServer().Rollback("rows", "early", &response).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST(AdminService, TellsEventsAfterAnIdAndTheHistory) {
  AdminServer server({.events =
                          [](uint64_t after_id) {
                            v1::EventsResponse response;
                            response.set_incarnation(99);
                            response.add_events()->set_id(after_id + 1);
                            return response;
                          },
                      .history =
                          [] {
                            v1::HistoryResponse response;
                            response.add_points()->set_samples(5);
                            return response;
                          }});
  const v1::EventsResponse events = server.Events(6);
  EXPECT_EQ(events.incarnation(), 99);
  ASSERT_EQ(events.events_size(), 1);
  EXPECT_EQ(events.events(0).id(), 7);
  ASSERT_EQ(server.History().points_size(), 1);
  EXPECT_EQ(server.History().points(0).samples(), 5);
  EXPECT_EQ(AdminServer().Events(0).events_size(), 0);
  EXPECT_EQ(AdminServer().History().points_size(), 0);
}

TEST(AdminService, RemovesTheCheckpointThatIsNamedBeforeItWrites) {
  Mutex mutex;  // Of calls: a race detector does not see that an answer through gRPC comes after its handler.
  std::vector<std::string> calls;
  AdminService::Handlers handlers;
  handlers.checkpoint = [&](const std::string& name) -> absl::StatusOr<v1::CheckpointResponse> {
    MutexLock lock(&mutex);
    calls.push_back("write " + name);
    return v1::CheckpointResponse();
  };
  handlers.remove_checkpoint = [&](const std::string& name) {
    MutexLock lock(&mutex);
    calls.push_back("remove " + name);
    return name == "stuck" ? absl::InternalError("the disk") : absl::OkStatus();
  };
  AdminServer server(handlers);
  v1::CheckpointResponse response;
  EXPECT_TRUE(server.Checkpoint("best-2", &response, "best-1").ok());
  EXPECT_EQ(server.Checkpoint("best-3", &response, "stuck").error_code(), grpc::StatusCode::INTERNAL);
  MutexLock lock(&mutex);
  EXPECT_EQ(calls, (std::vector<std::string>{"remove best-1", "write best-2", "remove stuck"}));
}

}  // namespace
}  // namespace lodestone::server
