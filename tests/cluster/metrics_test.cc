// What a client and a ps observe of the same calls. Both are in one process here, so their variables are together.
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/rpc/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "server/process.h"
#include "tests/cluster/faulty_proxy.h"
#include "tests/common/rpc/message_limit.h"
#include "tests/common/rpc/reserved_port.h"
#include "tests/common/telemetry/metric_text.h"
#include "worker/client/client.h"

namespace lodestone {
namespace {

constexpr uint64_t kCountedElements = 50'000;
constexpr uint32_t kCountedDim = 4;
constexpr int kPushes = 30, kPulls = 7;

std::string WorkerBytes(const std::string& direction) {
  return "lodestone_worker_payload_bytes_total{direction=\"" + direction + "\",codec=\"f32\"}";
}

class ClusterMetricsTest : public ::testing::Test {
 protected:
  // `faults` are done to pushes on their way, if it is not empty.
  void Start(const FaultyProxy::Faults& faults) {
    config_.mutable_cluster()->set_servers(1);
    config_.mutable_cluster()->set_shards(8);
    config_.mutable_server()->set_executors(2);
    config_.mutable_server()->set_listen(port_.address());
    if (faults) {
      proxy_ = std::make_unique<FaultyProxy>(port_.address(), faults);
      config_.mutable_server()->set_advertise(proxy_->address());
    }
    auto server = server::ServerProcess::Start(config_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ASSERT_TRUE(server_->WaitUntilReady().ok());
    config_.mutable_coordinator()->set_address(port_.address());
    auto client =
        worker::Client::Connect(config_, [this](const v1::WorkerProgress& progress) { reported_ = progress.clock(); });
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    std::vector<v1::TableSpec> specs(2);
    specs[0].set_name("dense");
    specs[0].mutable_dense()->add_dims(kCountedElements);
    specs[1].set_name("rows");
    specs[1].mutable_embedding()->set_dim(kCountedDim);
    for (v1::TableSpec& spec : specs) {
      spec.mutable_optimizer()->mutable_sgd();
      spec.mutable_broadcast()->set_every_ms(1);
    }
    auto tables = client_->EnsureTables(specs);
    ASSERT_TRUE(tables.ok()) << tables.status();
    tables_ = *std::move(tables);
  }
  void Push() {
    const std::vector<float> dense(kCountedElements, 1), rows(keys_.size() * kCountedDim, 1);
    const worker::DenseGradient dense_gradient{&tables_[0], dense.data()};
    const worker::RowGradients row_gradients{&tables_[1], keys_, rows.data()};
    ASSERT_TRUE(client_->Push(1, {&dense_gradient, 1}, {&row_gradients, 1}, {}, {}).ok());
  }
  void Pull() {
    std::vector<float> dense(kCountedElements), rows(keys_.size() * kCountedDim);
    ASSERT_TRUE(client_->PullNow({{&tables_[0], dense.data()}}, {{&tables_[1], keys_, rows.data()}}).ok());
  }
  v1::ServerStatus Status() {
    grpc::ClientContext context;
    v1::StatusResponse status;
    const auto stub = v1::Admin::NewStub(MakeChannel(port_.address(), kMessageBytesMax));
    EXPECT_TRUE(stub->Status(&context, v1::StatusRequest(), &status).ok());
    return status.server();
  }

  const ReservedPort port_;
  v1::Config config_;
  std::atomic<uint64_t> reported_{0};
  std::unique_ptr<FaultyProxy> proxy_;  // Null: there is none.
  std::unique_ptr<server::ServerProcess> server_;
  std::vector<worker::TableHandle> tables_;
  std::unique_ptr<worker::Client> client_;  // First to go.
  const std::vector<Key> keys_ = {1, 2, 3, 5, 8, 13, 21};
};

TEST_F(ClusterMetricsTest, BothSidesCountTheSameCallsAndBytes) {
  Start(nullptr);
  const MetricGrowth growth;
  const v1::ServerStatus before = Status();
  for (int i = 0; i < kPushes; ++i) Push();
  ASSERT_TRUE(client_->Flush().ok());
  for (int i = 0; i < kPulls; ++i) Pull();
  const v1::ServerStatus after = Status();
  EXPECT_EQ(growth.Of("lodestone_worker_push_duration_seconds_count"), kPushes);
  EXPECT_EQ(growth.Of("lodestone_worker_pull_duration_seconds_count"), kPulls);
  EXPECT_EQ(growth.Of(WorkerBytes("push")), static_cast<double>(after.push_bytes() - before.push_bytes()));
  EXPECT_EQ(growth.Of(WorkerBytes("pull")), static_cast<double>(after.pull_bytes() - before.pull_bytes()));
  EXPECT_EQ(growth.Of("lodestone_ps_push_duration_seconds_count"), static_cast<double>(after.pushes()));
  EXPECT_EQ(growth.Of("lodestone_ps_pull_duration_seconds_count"), static_cast<double>(after.pulls()));
  EXPECT_GE(after.pushes(), uint64_t{kPushes});
  // A push is on its way for longer than the ps works on it.
  EXPECT_GT(growth.Of("lodestone_worker_push_duration_seconds_sum"), 0);
  EXPECT_EQ(growth.Of("lodestone_worker_call_retries_total"), 0);
}

TEST_F(ClusterMetricsTest, BroadcastsCountAtTheSubscriberAsTheyDoAtThePs) {
  Start(nullptr);
  const MetricGrowth growth;
  const absl::Status subscribed = client_->Subscribe({&tables_[0]}, {}).status();
  ASSERT_TRUE(subscribed.ok()) << subscribed;
  Push();
  ASSERT_TRUE(client_->Flush().ok());
  // The anchor of all values, and what the push has changed, which is all of them again. Some may come with the anchor.
  while (growth.Of(WorkerBytes("broadcast")) < kCountedElements * sizeof(float)) std::this_thread::yield();
  EXPECT_GE(static_cast<double>(Status().broadcast_bytes()), growth.Of(WorkerBytes("broadcast")));
}

TEST_F(ClusterMetricsTest, CallsThatAreMadeAgainCount) {
  Start([](uint64_t push) { return push <= 3 ? FaultyProxy::Fault::kRefuse : FaultyProxy::Fault::kNone; });
  const MetricGrowth growth;
  Push();
  ASSERT_TRUE(client_->Flush().ok());
  EXPECT_GE(growth.Of("lodestone_worker_call_retries_total"), 3);
  EXPECT_EQ(growth.Of("lodestone_worker_push_duration_seconds_count"), 1);
}

TEST_F(ClusterMetricsTest, WhoConnectsHearsOfItsOwnProgress) {
  Start(nullptr);
  v1::WorkerProgress progress;
  progress.set_clock(42);
  client_->ReportProgress(progress);
  EXPECT_EQ(reported_, 42u);
}

}  // namespace
}  // namespace lodestone
