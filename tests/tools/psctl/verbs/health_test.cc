#include "tools/psctl/verbs/health.h"

#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/admin.grpc.pb.h"

namespace lodestone::psctl {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Says what it was told to say.
class FixedAdmin final : public v1::Admin::Service {
 public:
  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*, v1::StatusResponse* response) override {
    MutexLock lock(&mu_);
    *response = status_;
    return answer_;
  }
  void Say(const v1::StatusResponse& status, const grpc::Status& answer = grpc::Status::OK) {
    MutexLock lock(&mu_);
    status_ = status;
    answer_ = answer;
  }

 private:
  Mutex mu_;
  v1::StatusResponse status_ ABSL_GUARDED_BY(mu_);
  grpc::Status answer_ ABSL_GUARDED_BY(mu_);
};

class HealthTest : public ::testing::Test {
 protected:
  // A server, with the health service or without.
  void Start(bool has_health) {
    grpc::EnableDefaultHealthCheckService(has_health);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&admin_);
    server_ = builder.BuildAndStart();
    options_.address = "127.0.0.1:" + std::to_string(port);
    options_.timeout_ms = 60'000;  // The machine may be slow.
  }
  void SetReady(bool ready) { server_->GetHealthCheckService()->SetServingStatus("", ready); }
  // Runs it; what it printed on standard output.
  std::string Output(int exit_code) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(RunHealth(options_), exit_code);
    errors_ = testing::internal::GetCapturedStderr();
    return testing::internal::GetCapturedStdout();
  }

  FixedAdmin admin_;
  std::unique_ptr<grpc::Server> server_;
  HealthOptions options_;
  std::string errors_;
};

TEST_F(HealthTest, EndsWithZeroWhereThePsIsReady) {
  Start(true);
  SetReady(true);
  EXPECT_EQ(Output(0), "the ps at " + options_.address + " is ready\n");
  EXPECT_THAT(errors_, IsEmpty());
}

TEST_F(HealthTest, SaysWhatAPsThatIsNotReadyWaitsFor) {
  Start(true);
  SetReady(false);
  v1::StatusResponse status;
  status.mutable_storage()->set_log_error("000001.log: No space left on device");
  v1::WaitStatus* const wait = status.add_waits();
  wait->set_who("ps 0");
  wait->set_what("1 of 2 servers has joined");
  admin_.Say(status);
  EXPECT_THAT(Output(1), IsEmpty());
  EXPECT_EQ(errors_, "psctl health: the ps at " + options_.address +
                         " is not ready: 000001.log: No space left on device; ps 0: 1 of 2 servers has joined\n");
}

TEST_F(HealthTest, IsNotHeldUpByAPsThatDoesNotSayWhatItWaitsFor) {
  Start(true);
  SetReady(false);
  admin_.Say({}, grpc::Status(grpc::StatusCode::INTERNAL, "no words"));
  Output(1);
  EXPECT_EQ(errors_, "psctl health: the ps at " + options_.address + " is not ready\n");
}

TEST_F(HealthTest, FollowsThePsFromOneStateToTheOther) {
  Start(true);
  for (const bool ready : {false, true, false}) {
    SetReady(ready);
    EXPECT_EQ(CheckHealth(options_.address, options_.timeout_ms).ok(), ready);
  }
}

TEST_F(HealthTest, NamesTheAddressWhereNothingListens) {
  Start(true);
  server_->Shutdown();
  Output(3);
  EXPECT_THAT(errors_, HasSubstr("no ps answers at " + options_.address));
}

TEST_F(HealthTest, TellsAServerThatIsNoPs) {
  Start(false);
  Output(1);
  EXPECT_THAT(errors_, HasSubstr("what listens at " + options_.address + " has no health service"));
}

TEST_F(HealthTest, AsJsonHasTheReason) {
  options_.json = true;
  Start(true);
  SetReady(true);
  nlohmann::json json = nlohmann::json::parse(Output(0));
  EXPECT_EQ(json["ready"], true);
  EXPECT_EQ(json["address"], options_.address);
  SetReady(false);
  json = nlohmann::json::parse(Output(1));
  EXPECT_EQ(json["ready"], false);
  EXPECT_EQ(json["reason"], "the ps at " + options_.address + " is not ready");
  EXPECT_THAT(errors_, IsEmpty());
}

TEST_F(HealthTest, RefusesAnAddressThatIsNone) {
  options_.address = "ps1:seven";
  Output(2);
  EXPECT_THAT(errors_, HasSubstr("--address"));
}

}  // namespace
}  // namespace lodestone::psctl
