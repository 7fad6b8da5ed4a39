// A worker and a ps of one machine find each other's socket.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/process.h"
#include "worker/client.h"

namespace lodestone {
namespace {

// A port of this machine.
class Port {
 public:
  Port() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  }
  ~Port() { Free(); }
  // Until then, whoever connects to it is refused.
  void Free() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  const std::string& address() const { return address_; }

 private:
  int fd_;
  std::string address_;
};

class LocalSocketTest : public ::testing::Test {
 protected:
  // One ps, which tells others an address at which nobody answers if `elsewhere`.
  void StartPs(bool local_sockets, bool elsewhere) {
    for (;;) {
      Port listen;
      config_.mutable_cluster()->set_servers(1);
      config_.mutable_cluster()->set_local_sockets(local_sockets);
      config_.mutable_server()->set_index(0);
      config_.mutable_server()->set_listen(listen.address());
      if (elsewhere) config_.mutable_server()->set_advertise(nobody_.address());
      config_.mutable_coordinator()->set_address(listen.address());
      config_.mutable_worker()->set_retry_timeout_ms(300);
      listen.Free();
      auto ps = ServerProcess::Start(config_);
      if (absl::IsUnavailable(ps.status())) continue;  // Somebody else took the port in between.
      ASSERT_TRUE(ps.ok()) << ps.status();
      ps_ = *std::move(ps);
      break;
    }
    const absl::Status ready = ps_->WaitUntilReady();
    ASSERT_TRUE(ready.ok()) << ready;
  }
  ~LocalSocketTest() override {
    if (ps_ != nullptr) ps_->Shutdown(0);
  }

  // Pushes to a table and pulls it back.
  static absl::Status PushAndPull(const v1::Config& config) {
    auto client = Client::Connect(config);
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
    const DenseGradient pushed{&(*tables)[0], gradient.data()};
    if (absl::Status status = (*client)->Push(1, {&pushed, 1}, {}, {}, {}); !status.ok()) return status;
    if (absl::Status status = (*client)->Flush(); !status.ok()) return status;
    std::vector<float> values(4);
    const auto versions = (*client)->PullNow({{&(*tables)[0], values.data()}}, {});
    if (!versions.ok()) return versions.status();
    EXPECT_EQ(values, gradient);
    return absl::OkStatus();
  }

  Port nobody_;
  v1::Config config_;
  std::unique_ptr<ServerProcess> ps_;
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
