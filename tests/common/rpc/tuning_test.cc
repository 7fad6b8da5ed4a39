#include "common/rpc/tuning.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "grpcpp/create_channel.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

// Threads of this process that are called `name`.
int CountThreads(const std::string& name) {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string comm;
    std::getline(file, comm);
    count += comm == name;
  }
  return count;
}

TEST(Tuning, GrpcStartsNoThreadsOfItsOwnForCallbacks) {
  TuneLibraries();
  for (int round = 0; round < 3; ++round) {
    grpc::CallbackGenericService service;  // Answers all calls with UNIMPLEMENTED, in callbacks.
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(&service);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    ASSERT_NE(server, nullptr);
    while (CountThreads("callbacks") < 2) std::this_thread::yield();
    EXPECT_EQ(CountThreads("nexting_thread"), 0);

    grpc::GenericStub stub(
        grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const grpc::ByteBuffer request;
    grpc::ByteBuffer response;
    grpc::Status status;
    const auto call = stub.PrepareUnaryCall(&context, "/any.Service/Method", request, &queue);
    call->StartCall();
    call->Finish(&response, &status, &status);
    void* tag = nullptr;
    bool ok = false;
    ASSERT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    server->Shutdown();
    queue.Shutdown();
    EXPECT_FALSE(queue.Next(&tag, &ok));
  }
  while (CountThreads("callbacks") > 0) std::this_thread::yield();  // They end with the last server.
}

}  // namespace
}  // namespace lodestone
