// The time that a ps with the coordinator takes to answer a heartbeat, while it does the work that once kept it from
// that.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/rpc/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "proto/coordinator.grpc.pb.h"
#include "tests/cluster/psctl_run.h"
#include "tests/common/rpc/message_limit.h"
#include "tests/common/rpc/reserved_port.h"
#include "tools/psctl/local/child_process.h"
#include "worker/client/client.h"

namespace lodestone {
namespace {

constexpr int kClients = 4;
constexpr std::chrono::milliseconds kPace{5};
// What fails the test: of the slowest heartbeat a lease's time, and of the one in the middle of the run what is
// promised of 99 in 100. A machine that stands still now and then is no failure, a heartbeat that waits for the work
// is.
constexpr double kWorstMs = 10'000;
#ifdef LODESTONE_SANITIZER
constexpr uint64_t kLargeElements = 1 << 24;
constexpr double kMiddleMs = kWorstMs;
#else
constexpr uint64_t kLargeElements = 1 << 28;  // 1 GiB.
constexpr double kMiddleMs = 100;
#endif

double MsSince(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
}

// The median of sorted times, each of which counts for as long as it takes, a second at most: so one that waits for all
// of the work weighs more than all quick ones before it.
double InTheMiddle(const std::vector<double>& times_ms) {
  const auto weight = [](double time_ms) { return std::min(time_ms, 1000.0) + static_cast<double>(kPace.count()); };
  double left_ms = 0;
  for (const double time_ms : times_ms) left_ms += weight(time_ms) / 2;
  for (const double time_ms : times_ms) {
    if ((left_ms -= weight(time_ms)) <= 0) return time_ms;
  }
  return 0;
}

class HeartbeatTest : public testing::Test {
 protected:
  void Start(bool slow_disk, const std::string& durability) {
    const std::string folder = TestFile(testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder);
    config_.mutable_coordinator()->set_address(port_.address());
    config_.mutable_cluster()->set_servers(1);
    config_.mutable_cluster()->set_workers(kClients + 1);
    std::ofstream(folder + "/ps.yaml") << "cluster: {servers: 1, durability: " << durability
                                       << ", workers: " << kClients + 1 << "}\n"
                                       << "coordinator: {address: '" << port_.address() << "'}\n"
                                       << "server: {listen: '" << port_.address() << "'}\n";
    std::vector<std::string> argv = {"/usr/bin/env"};
    if (slow_disk) {
      argv.push_back("ASAN_OPTIONS=verify_asan_link_order=0");
      argv.push_back("LD_PRELOAD=" + std::filesystem::absolute(ProjectFile("tests/cluster/slow_disk.so")).string());
    }
    argv.insert(argv.end(), {ProjectFile("server/ps"), "--config", folder + "/ps.yaml"});
    if (durability != "memory") argv.insert(argv.end(), {"--set", "server.data_dir=" + folder + "/data"});
    ps_ = psctl::Child::Start("ps", argv).value();
    stub_ = v1::Coordinator::NewStub(MakeChannel(port_.address(), kMessageBytesMax));
    v1::JoinRequest join;
    join.set_role(v1::ROLE_WORKER);
    join.set_cluster(config_.cluster().name());
    join.set_token(1);
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const grpc::Status joined = stub_->Join(&context, join, &member_);
    ASSERT_TRUE(joined.ok()) << joined.error_message();
  }

  // Connects clients and has each run `work` until told to stop, while heartbeats are timed: `count` of them, and until
  // `ended` holds.
  using Work = std::function<void(worker::Client*, const std::atomic<bool>* stop)>;
  void Measure(const std::string& name, int clients, size_t count, const Work& work) {
    std::atomic<bool> stop{false};
    std::atomic<int> working{0}, ended{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < clients; ++i) {
      threads.emplace_back([&] {
        auto client = worker::Client::Connect(config_);
        EXPECT_TRUE(client.ok()) << client.status();
        ++working;
        if (client.ok()) work(client->get(), &stop);
        ++ended;
      });
    }
    while (working < clients) std::this_thread::yield();
    std::vector<double> times_ms;
    while (!HasFailure() && (times_ms.size() < count || (count == 0 && ended < clients))) {
      times_ms.push_back(Beat());
      std::this_thread::sleep_for(kPace);  // So that all of the work's phases are met.
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
    ExpectOnTime(absl::StrCat("heartbeats while ", name), std::move(times_ms));
  }
  static void ExpectOnTime(const std::string& name, std::vector<double> times_ms) {
    ASSERT_FALSE(times_ms.empty());
    std::sort(times_ms.begin(), times_ms.end());
    const auto quantile = [&](double part) { return times_ms[static_cast<size_t>(part * (times_ms.size() - 1))]; };
    std::cout << absl::StreamFormat("%s: %d, p50 %.1f ms, p99 %.1f ms, max %.1f ms\n", name, times_ms.size(),
                                    quantile(0.5), quantile(0.99), times_ms.back());
    EXPECT_LT(InTheMiddle(times_ms), kMiddleMs) << name;
    EXPECT_LT(times_ms.back(), kWorstMs) << name;
  }

 private:
  // How long a heartbeat takes, in ms.
  double Beat() {
    v1::HeartbeatRequest request;
    request.set_incarnation(member_.incarnation());
    v1::HeartbeatResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto began = std::chrono::steady_clock::now();
    const grpc::Status status = stub_->Heartbeat(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    ps_->ReadOutput([](absl::string_view) {});
    return MsSince(began);
  }

  const ReservedPort port_;
  v1::Config config_;
  std::unique_ptr<psctl::Child> ps_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  v1::JoinResponse member_;
};

v1::TableSpec DenseTable(const std::string& name, uint64_t elements) {
  v1::TableSpec spec;
  spec.set_name(name);
  spec.mutable_dense()->add_dims(elements);
  spec.mutable_optimizer()->mutable_sgd();
  return spec;
}

constexpr uint64_t kBulkElements = 1 << 20;
v1::TableSpec BulkTable() { return DenseTable("bulk", kBulkElements); }

// Pushes 4 MiB again and again.
void PushOn(worker::Client* client, const std::atomic<bool>* stop) {
  const auto tables = client->EnsureTables({BulkTable()});
  ASSERT_TRUE(tables.ok()) << tables.status();
  const std::vector<float> gradient(kBulkElements, 1);
  const worker::DenseGradient push{&(*tables)[0], gradient.data(), false};
  for (uint64_t clock = 1; !*stop; ++clock) {
    const absl::Status pushed = client->Push(clock, {&push, 1}, {}, {}, nullptr);
    ASSERT_TRUE(pushed.ok()) << pushed;
  }
  EXPECT_TRUE(client->Flush().ok());
}

TEST_F(HeartbeatTest, IsAnsweredWhileALargeTableIsMade) {
  Start(false, "memory");
  Measure("a table of 1 GiB is made", 1, 0, [](worker::Client* client, const std::atomic<bool>*) {
    v1::TableSpec spec = DenseTable("large", kLargeElements);
    spec.mutable_initializer()->mutable_normal();
    const auto tables = client->EnsureTables({spec});
    EXPECT_TRUE(tables.ok()) << tables.status();
  });
}

TEST_F(HeartbeatTest, IsAnsweredWhileEachWriteToTheDiskTakes200Ms) {
  Start(true, "process");
  Measure("each write to the disk takes 200 ms", kClients, 500, PushOn);
}

// One client reads what the others push.
TEST_F(HeartbeatTest, AndSoArePullsWhileEachWriteToTheDiskTakes200Ms) {
  constexpr size_t kPulls = 50;  // At least.
  Start(true, "process");
  std::atomic<bool> is_taken{false};
  std::vector<double> times_ms;
  Measure("each write to the disk takes 200 ms and one client pulls", kClients, 500,
          [&](worker::Client* client, const std::atomic<bool>* stop) {
            if (is_taken.exchange(true)) return PushOn(client, stop);
            const auto tables = client->EnsureTables({BulkTable()});
            ASSERT_TRUE(tables.ok()) << tables.status();
            std::vector<float> values(kBulkElements);
            while (!*stop || times_ms.size() < kPulls) {
              const auto began = std::chrono::steady_clock::now();
              const absl::Status pulled = client->PullNow({{&tables->front(), values.data()}}, {}).status();
              ASSERT_TRUE(pulled.ok()) << pulled;
              times_ms.push_back(MsSince(began));
            }
          });
  ExpectOnTime("pulls while each write to the disk takes 200 ms", std::move(times_ms));
}

TEST_F(HeartbeatTest, IsAnsweredUnderFullLoad) {
  Start(false, "memory");
  Measure("four clients push all they can", kClients, 500, PushOn);
}

}  // namespace
}  // namespace lodestone
