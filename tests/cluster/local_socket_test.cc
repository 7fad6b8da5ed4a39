// A worker and a ps of one machine find each other's socket.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/process.h"
#include "tests/common/rpc/reserved_port.h"
#include "worker/client/client.h"

namespace lodestone {
namespace {

class LocalSocketTest : public ::testing::Test {
 protected:
  // One ps, which tells others an address at which nobody answers if `elsewhere`.
  void StartPs(bool local_sockets, bool elsewhere) {
    config_.mutable_cluster()->set_servers(1);
    config_.mutable_cluster()->set_local_sockets(local_sockets);
    config_.mutable_server()->set_index(0);
    config_.mutable_server()->set_listen(listen_.address());
    if (elsewhere) config_.mutable_server()->set_advertise(nobody_.address());
    config_.mutable_coordinator()->set_address(listen_.address());
    config_.mutable_worker()->set_retry_timeout_ms(300);
    auto ps = server::ServerProcess::Start(config_);
    ASSERT_TRUE(ps.ok()) << ps.status();
    ps_ = *std::move(ps);
    const absl::Status ready = ps_->WaitUntilReady();
    ASSERT_TRUE(ready.ok()) << ready;
  }
  ~LocalSocketTest() override {
    if (ps_ != nullptr) ps_->Shutdown(0);
  }

  // Pushes to a table and pulls it back.
  static absl::Status PushAndPull(const v1::Config& config) {
    auto client = worker::Client::Connect(config);
    if (!client.ok()) return client.status();
    v1::TableSpec spec;
    spec.set_name("t");
    spec.mutable_dense()->add_dims(4);
    spec.mutable_optimizer()->mutable_sgd();
    spec.mutable_optimizer()->set_learning_rate(-1);
    spec.mutable_initializer()->mutable_zeros();
    const auto tables = (*client)->EnsureTables({spec});
    if (!tables.ok()) return tables.status();
    const std::vector<float> gradient = {1, 2, 3, 4};
    const worker::DenseGradient pushed{&(*tables)[0], gradient.data()};
    if (absl::Status status = (*client)->Push(1, {&pushed, 1}, {}, {}, {}); !status.ok()) return status;
    if (absl::Status status = (*client)->Flush(); !status.ok()) return status;
    std::vector<float> values(4);
    const auto versions = (*client)->PullNow({{&(*tables)[0], values.data()}}, {});
    if (!versions.ok()) return versions.status();
    EXPECT_EQ(values, gradient);
    return absl::OkStatus();
  }

  const ReservedPort listen_, nobody_;
  v1::Config config_;
  std::unique_ptr<server::ServerProcess> ps_;
};

TEST_F(LocalSocketTest, AWorkerOfTheSameMachineNeedsNoAddress) {
  ASSERT_NO_FATAL_FAILURE(StartPs(/*local_sockets=*/true, /*elsewhere=*/true));
  const absl::Status status = PushAndPull(config_);
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(LocalSocketTest, AWorkerThatShallNotUseItGoesToTheAddress) {
  ASSERT_NO_FATAL_FAILURE(StartPs(/*local_sockets=*/true, /*elsewhere=*/true));
  config_.mutable_cluster()->set_local_sockets(false);
  const absl::Status status = PushAndPull(config_);
  EXPECT_FALSE(status.ok()) << "nobody answers there";
}

TEST_F(LocalSocketTest, WithoutASocketTheAddressIsUsed) {
  ASSERT_NO_FATAL_FAILURE(StartPs(/*local_sockets=*/false, /*elsewhere=*/false));
  config_.mutable_cluster()->set_local_sockets(true);
  const absl::Status status = PushAndPull(config_);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace lodestone
