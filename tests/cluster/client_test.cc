// Clients and whole ps in one process, over real connections.
#include "worker/client/client.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/random.h"
#include "common/rpc/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "server/process.h"
#include "tests/cluster/faulty_proxy.h"
#include "tests/common/rpc/message_limit.h"

namespace lodestone {
namespace {

constexpr uint32_t kServers = 2;
constexpr uint64_t kElements = 50'000;  // 13 blocks of the dense table.
constexpr Key kKeys = 300;
constexpr uint32_t kDim = 4;

// A port that was free a moment ago.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  LODESTONE_CHECK(bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
  LODESTONE_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  close(fd);
  return ntohs(address.sin_port);
}

// Some ps; if `faults` is not empty, each behind a proxy that does to pushes what it says.
class Cluster {
 public:
  explicit Cluster(const FaultyProxy::Faults& faults) {
    config_.mutable_cluster()->set_servers(kServers);
    config_.mutable_cluster()->set_workers(8);
    config_.mutable_cluster()->set_shards(8);
    config_.mutable_cluster()->set_local_sockets(!faults);  // They would lead past the proxies.
    config_.mutable_server()->set_executors(2);
    while (servers_.size() < kServers) StartServer(faults);
    for (const auto& server : servers_) {
      const absl::Status ready = server->WaitUntilReady();
      EXPECT_TRUE(ready.ok()) << ready;
    }
  }
  ~Cluster() {
    for (const auto& server : servers_) server->Shutdown(0);
  }

  const v1::Config& config() const { return config_; }

  // Of a ps when its proxy has nothing under way.
  v1::ServerStatus StatusOf(uint32_t server) const {
    if (proxies_[server] != nullptr) proxies_[server]->AwaitIdle();
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    v1::StatusResponse status;
    const auto stub = v1::Admin::NewStub(MakeChannel(addresses_[server], kMessageBytesMax));
    EXPECT_TRUE(stub->Status(&context, v1::StatusRequest(), &status).ok());
    return status.server();
  }

 private:
  // Adds the next ps, unless another process took its port in between.
  void StartServer(const FaultyProxy::Faults& faults) {
    const auto index = static_cast<uint32_t>(servers_.size());
    const std::string address = absl::StrCat("127.0.0.1:", FreePort());
    auto proxy = faults ? std::make_unique<FaultyProxy>(address, faults) : nullptr;
    v1::Config config = config_;
    config.mutable_server()->set_index(index);
    config.mutable_server()->set_listen(address);
    if (proxy != nullptr) config.mutable_server()->set_advertise(proxy->address());
    if (index == 0) config.mutable_coordinator()->set_address(address);
    auto server = server::ServerProcess::Start(config);
    if (absl::IsUnavailable(server.status())) return;
    LODESTONE_CHECK(server.ok());
    config_.mutable_coordinator()->set_address(config.coordinator().address());
    addresses_.push_back(address);
    proxies_.push_back(std::move(proxy));
    servers_.push_back(*std::move(server));
  }

  v1::Config config_;
  std::vector<std::string> addresses_;  // Of the ps themselves.
  std::vector<std::unique_ptr<FaultyProxy>> proxies_;
  std::vector<std::unique_ptr<server::ServerProcess>> servers_;
};

// Tables that add what is pushed to zeros.
std::vector<v1::TableSpec> AddingTables() {
  std::vector<v1::TableSpec> specs(2);
  specs[0].set_name("dense");
  specs[0].mutable_dense()->add_dims(kElements);
  specs[1].set_name("rows");
  specs[1].mutable_embedding()->set_dim(kDim);
  for (v1::TableSpec& spec : specs) {
    spec.mutable_optimizer()->mutable_sgd();
    spec.mutable_optimizer()->set_learning_rate(-1);
    spec.mutable_initializer()->mutable_zeros();
    spec.mutable_broadcast()->set_every_ms(10);
  }
  return specs;
}

// What all clients have pushed together. Sums stay far below 2^24, so floats hold them exactly.
struct Sums {
  std::vector<float> dense = std::vector<float>(kElements);
  std::vector<float> rows = std::vector<float>(kKeys * kDim);
};

// Pushes `count` gradients of small integers and adds them to `sums`. Every other one is borrowed, and spoilt as soon
// as its push is done: whatever is still sent or sent again from there would show in the sums.
void PushIntegers(worker::Client* client, const std::vector<worker::TableHandle>& tables, uint64_t seed, int count,
                  Sums* sums) {
  std::vector<float> dense(kElements);
  for (int push = 0; push < count; ++push) {
    const uint64_t stream = StreamSeed(seed, static_cast<uint64_t>(push));
    const auto integer = [&](uint64_t n) { return static_cast<float>(RandomBits(stream, n) % 7) - 3; };
    std::vector<Key> keys;
    std::vector<float> rows;
    for (Key key = 0; key < kKeys; ++key) {
      if (RandomBits(stream, key) % 4 != 0) continue;
      keys.push_back(key);
      for (uint32_t d = 0; d < kDim; ++d) {
        rows.push_back(integer(1'000'000 + key * kDim + d));
        sums->rows[key * kDim + d] += rows.back();
      }
    }
    for (size_t i = 0; i < kElements; ++i) sums->dense[i] += dense[i] = integer(2'000'000 + i);
    const bool borrowed = push % 2 == 0;
    const worker::DenseGradient dense_gradient{&tables[0], dense.data(), borrowed};
    const worker::RowGradients row_gradients{&tables[1], keys, rows.data()};
    std::latch done(1);
    const absl::Status status =
        client->Push(push + 1, {&dense_gradient, 1}, {&row_gradients, 1}, {},
                     borrowed ? [&done](const worker::Client::PushResult&) { done.count_down(); }
                              : std::function<void(worker::Client::PushResult)>());
    ASSERT_TRUE(status.ok()) << status;
    if (!borrowed) continue;
    done.wait();
    std::fill(dense.begin(), dense.end(), 1e9f);
  }
  const absl::Status flushed = client->Flush();
  ASSERT_TRUE(flushed.ok()) << flushed;
}

// Four clients push at the same time; returns what the servers must hold then.
Sums PushFromFourClients(const v1::Config& config, uint64_t seed) {
  constexpr int kClients = 4, kPushes = 25;
  std::vector<Sums> sums(kClients);
  std::vector<std::thread> threads;
  for (int c = 0; c < kClients; ++c) {
    threads.emplace_back([&config, seed, c, sums = &sums[c]] {
      auto client = worker::Client::Connect(config);
      ASSERT_TRUE(client.ok()) << client.status();
      const auto tables = (*client)->EnsureTables(AddingTables());
      ASSERT_TRUE(tables.ok()) << tables.status();
      PushIntegers(client->get(), *tables, StreamSeed(seed, c), kPushes, sums);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int c = 1; c < kClients; ++c) {
    for (size_t i = 0; i < kElements; ++i) sums[0].dense[i] += sums[c].dense[i];
    for (size_t i = 0; i < kKeys * kDim; ++i) sums[0].rows[i] += sums[c].rows[i];
  }
  return sums[0];
}

TEST(Cluster, SumsPushesExactlyThoughCallsAreRepeatedRefusedAndTheirAnswersLost) {
  constexpr uint64_t kSeed = 20'261'121;
  RecordProperty("seed", std::to_string(kSeed));
  std::atomic<uint64_t> repeated{0}, dropped{0};
  Cluster cluster([&](uint64_t push) {
    const uint64_t bits = RandomBits(kSeed, push) % 10;
    if (bits < 2) return ++repeated, FaultyProxy::Fault::kRepeat;
    if (bits < 4) return ++dropped, FaultyProxy::Fault::kDropReply;
    return bits < 5 ? FaultyProxy::Fault::kRefuse : FaultyProxy::Fault::kNone;
  });
  const Sums sums = PushFromFourClients(cluster.config(), kSeed);

  auto client = worker::Client::Connect(cluster.config());
  ASSERT_TRUE(client.ok()) << client.status();
  const auto tables = *(*client)->EnsureTables(AddingTables());
  Sums held;
  std::vector<Key> keys;
  for (Key key = 0; key < kKeys; ++key) keys.push_back(key);
  const auto versions = (*client)->PullNow({{&tables[0], held.dense.data()}}, {{&tables[1], keys, held.rows.data()}});
  ASSERT_TRUE(versions.ok()) << versions.status();
  EXPECT_EQ(held.dense, sums.dense);
  EXPECT_EQ(held.rows, sums.rows);

  EXPECT_GT(repeated, 0);
  EXPECT_GT(dropped, 0);
  // A push whose answer was lost had been applied when the client sent it again. (Of two copies that arrive at once
  // each may be the first on some shards: then neither counts as a duplicate.)
  EXPECT_GE(cluster.StatusOf(0).pushes_duplicate() + cluster.StatusOf(1).pushes_duplicate(), dropped);
}

// The dense table as a subscriber holds it.
class Subscriber {
 public:
  void Take(const worker::BlockUpdate& update, const BlockLayout& layout) {
    MutexLock lock(&mu_);
    update.values.CopyTo(values_.data() + uint64_t{update.block} * layout.block_elements);
    changed_.NotifyAll();
  }
  void Await(const std::vector<float>& values) {
    MutexLock lock(&mu_);
    while (values_ != values) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<float> values_ ABSL_GUARDED_BY(mu_) = std::vector<float>(kElements, -1);
};

TEST(Cluster, BringsSubscribersToWhatAPullReturns) {
  constexpr uint64_t kSeed = 12'112'026;
  RecordProperty("seed", std::to_string(kSeed));
  Cluster cluster(nullptr);
  Subscriber subscriber;  // Outlives the client.
  auto client = worker::Client::Connect(cluster.config());
  ASSERT_TRUE(client.ok()) << client.status();
  const auto tables = *(*client)->EnsureTables(AddingTables());
  const absl::StatusOr<worker::SubscriptionId> subscribed = (*client)->Subscribe(
      {&tables[0]},
      {.on_block = [&](const worker::BlockUpdate& update) { subscriber.Take(update, tables[0].layout); }});
  ASSERT_TRUE(subscribed.ok()) << subscribed.status();

  const Sums sums = PushFromFourClients(cluster.config(), kSeed);
  subscriber.Await(sums.dense);
  std::vector<float> pulled(kElements);
  ASSERT_TRUE((*client)->PullNow({{&tables[0], pulled.data()}}, {}).ok());
  EXPECT_EQ(pulled, sums.dense);
  client->reset();
}

}  // namespace
}  // namespace lodestone
