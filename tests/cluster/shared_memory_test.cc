// Workers and a ps of one machine that share memory. Both are in one process here, so their variables are together.
#include <cmath>
#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/process.h"
#include "tests/common/rpc/reserved_port.h"
#include "tests/common/security/test_certificates.h"
#include "tests/common/telemetry/metric_text.h"
#include "tests/server/auth/identities_file.h"
#include "worker/client/client.h"

namespace lodestone {
namespace {

// Together less than a message has at most (MessageLimits), so that all of a call's values are in one.
constexpr uint64_t kSharedElements = 192 << 10;
constexpr Key kSharedKeys = 4096;
constexpr uint32_t kSharedDim = 64;
constexpr uint64_t kNumbers = kSharedElements + kSharedKeys * kSharedDim;
constexpr uint64_t kCallBytes = kNumbers * sizeof(float);

// What push `push` adds to number `i`, of the dense table or then of the rows: a small integer, so that sums are exact.
float Added(uint64_t push, uint64_t i) { return static_cast<float>((push * 7 + i * 3) % 11) - 5; }

class SharedMemoryTest : public ::testing::Test {
 protected:
  SharedMemoryTest() {
    config_.mutable_cluster()->set_servers(1);
    config_.mutable_cluster()->set_shards(8);
    config_.mutable_cluster()->set_shared_memory(true);
    config_.mutable_coordinator()->set_address(port_.address());
    config_.mutable_server()->set_executors(2);
    config_.mutable_server()->set_listen(port_.address());
    config_.mutable_worker()->set_pushes_in_flight_max(8);
    // A busy machine is no reason to send anything again, which would count twice.
    config_.mutable_worker()->set_call_timeout_ms(600'000);
    config_.mutable_worker()->set_retry_timeout_ms(600'000);
    config_.mutable_coordinator()->set_lease_ms(60'000);
    for (Key key = 0; key < kSharedKeys; ++key) keys_.push_back(5 * key + 1);
  }
  ~SharedMemoryTest() override {
    client_.reset();
    StopPs();
  }

  void StartPs(const v1::Config& config) {
    auto ps = server::ServerProcess::Start(config);
    ASSERT_TRUE(ps.ok()) << ps.status();
    ps_ = *std::move(ps);
    const absl::Status ready = ps_->WaitUntilReady();
    ASSERT_TRUE(ready.ok()) << ready;
  }
  void StopPs() {
    if (ps_ != nullptr) ps_->Shutdown(0);
    ps_.reset();
  }
  void Connect(const v1::Config& config) {
    auto client = worker::Client::Connect(config);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    std::vector<v1::TableSpec> specs(2);
    specs[0].set_name("dense");
    specs[0].mutable_dense()->add_dims(kSharedElements);
    specs[1].set_name("rows");
    specs[1].mutable_embedding()->set_dim(kSharedDim);
    for (v1::TableSpec& spec : specs) {
      spec.mutable_optimizer()->mutable_sgd();
      spec.mutable_optimizer()->set_learning_rate(-1);
      spec.mutable_initializer()->mutable_zeros();
    }
    auto tables = client_->EnsureTables(specs);
    ASSERT_TRUE(tables.ok()) << tables.status();
    tables_ = *std::move(tables);
  }

  // The dense table's, then the rows'.
  using Numbers = std::vector<float>;
  static Numbers NumbersOf(uint64_t push) {
    Numbers numbers(kNumbers);
    for (uint64_t i = 0; i < kNumbers; ++i) numbers[i] = Added(push, i);
    return numbers;
  }
  // What all pushes below `pushes` come to.
  static Numbers SumOf(uint64_t pushes) {
    Numbers sum(kNumbers);
    for (uint64_t push = 0; push < pushes; ++push) {
      for (uint64_t i = 0; i < kNumbers; ++i) sum[i] += Added(push, i);
    }
    return sum;
  }

  // Of what is `borrowed` the caller keeps the dense table's numbers until the push is done.
  absl::Status Push(uint64_t push, const Numbers& numbers, bool borrowed = false,
                    std::function<void(worker::Client::PushResult)> done = nullptr) {
    const worker::DenseGradient dense{&tables_[0], numbers.data(), borrowed};
    const worker::RowGradients rows{&tables_[1], keys_, numbers.data() + kSharedElements};
    return client_->Push(push + 1, {&dense, 1}, {&rows, 1}, {}, std::move(done));
  }
  void Pull(Numbers* numbers, std::function<void(absl::Status, worker::ShardVersions)> done) {
    client_->Pull({{&tables_[0], numbers->data()}}, {{&tables_[1], keys_, numbers->data() + kSharedElements}},
                  std::move(done));
  }
  Numbers PullNow() {
    Numbers numbers(kNumbers, -1e9f);
    const auto versions =
        client_->PullNow({{&tables_[0], numbers.data()}}, {{&tables_[1], keys_, numbers.data() + kSharedElements}});
    EXPECT_TRUE(versions.ok()) << versions.status();
    return numbers;
  }
  Numbers PushPull(uint64_t push) {
    const Numbers numbers = NumbersOf(push);
    Numbers pulled(kNumbers, -1e9f);
    const worker::DenseGradient dense{&tables_[0], numbers.data()};
    const worker::RowGradients rows{&tables_[1], keys_, numbers.data() + kSharedElements};
    std::latch done(1);
    const absl::Status sent =
        client_->PushPull(push + 1, {&dense, 1}, {&rows, 1}, {}, {{&tables_[0], pulled.data()}},
                          {{&tables_[1], keys_, pulled.data() + kSharedElements}},
                          [&done](const worker::Client::PushResult& result, const worker::ShardVersions&) {
                            EXPECT_TRUE(result.status.ok()) << result.status;
                            done.count_down();
                          });
    EXPECT_TRUE(sent.ok()) << sent;
    if (sent.ok()) done.wait();
    return pulled;
  }

  static double Shared(const MetricGrowth& growth, const std::string& side, const std::string& direction) {
    return growth.Of(absl::StrCat("lodestone_", side, "_shared_bytes_total{direction=\"", direction, "\"}"));
  }
  // Of a ps and a worker that have shared the values of so many calls, and nothing else.
  static void ExpectShared(const MetricGrowth& growth, uint64_t pushes, uint64_t pulls) {
    for (const char* side : {"ps", "worker"}) {
      EXPECT_EQ(Shared(growth, side, "push"), static_cast<double>(pushes * kCallBytes)) << side;
      EXPECT_EQ(Shared(growth, side, "pull"), static_cast<double>(pulls * kCallBytes)) << side;
    }
  }
  // Some pushes and pulls of which nothing is shared.
  void ExpectMessagesOnly() {
    const MetricGrowth growth;
    for (uint64_t push = 0; push < 4; ++push) {
      ASSERT_TRUE(Push(push, NumbersOf(push)).ok());
      ASSERT_TRUE(client_->Flush().ok());
      EXPECT_EQ(PullNow(), SumOf(push + 1));
    }
    EXPECT_EQ(PushPull(4), SumOf(5));
    ExpectShared(growth, 0, 0);
  }

  const ReservedPort port_;
  v1::Config config_;
  std::vector<Key> keys_;
  std::unique_ptr<server::ServerProcess> ps_;
  std::vector<worker::TableHandle> tables_;
  std::unique_ptr<worker::Client> client_;
};

TEST_F(SharedMemoryTest, PushesAndPullsAreExactAndNoneOfTheirValuesTravelsInAMessage) {
  ASSERT_NO_FATAL_FAILURE(StartPs(config_));
  ASSERT_NO_FATAL_FAILURE(Connect(config_));
  {
    // The first call of a connection offers the memory, and is told that the ps knows of lists of keys.
    const MetricGrowth growth;
    EXPECT_EQ(PullNow(), SumOf(0));
    ExpectShared(growth, 0, 0);
  }
  const MetricGrowth growth;
  constexpr uint64_t kRounds = 6;
  for (uint64_t round = 0; round < kRounds; ++round) {
    // Every other push is borrowed, and spoilt as soon as it is done: what was still read then would show.
    const bool borrowed = round % 2 == 0;
    Numbers numbers = NumbersOf(round);
    std::latch done(1);
    const absl::Status sent = Push(round, numbers, borrowed, [&done](const worker::Client::PushResult& result) {
      EXPECT_TRUE(result.status.ok()) << result.status;
      done.count_down();
    });
    ASSERT_TRUE(sent.ok()) << sent;
    if (borrowed) done.wait();
    numbers.assign(kNumbers, 1e9f);
    if (!borrowed) done.wait();
    EXPECT_EQ(PullNow(), SumOf(round + 1));
  }
  for (uint64_t round = kRounds; round < 2 * kRounds; ++round) EXPECT_EQ(PushPull(round), SumOf(round + 1));
  ExpectShared(growth, 2 * kRounds, 2 * kRounds);
}

TEST_F(SharedMemoryTest, AFewRowsBesideALargeTableHinderNothing) {
  ASSERT_NO_FATAL_FAILURE(StartPs(config_));
  ASSERT_NO_FATAL_FAILURE(Connect(config_));
  keys_.resize(3);  // Too few for a list that were worth remembering.
  constexpr uint64_t kFew = kSharedElements + 3 * kSharedDim;
  const auto few = [](Numbers numbers) {
    numbers.resize(kFew);
    return numbers;
  };
  EXPECT_EQ(few(PullNow()), few(SumOf(0)));
  const MetricGrowth growth;
  for (uint64_t push = 0; push < 3; ++push) {
    ASSERT_TRUE(Push(push, NumbersOf(push)).ok());
    ASSERT_TRUE(client_->Flush().ok());
    EXPECT_EQ(few(PullNow()), few(SumOf(push + 1)));
  }
  for (const char* side : {"ps", "worker"}) {
    for (const char* direction : {"push", "pull"}) {
      EXPECT_EQ(Shared(growth, side, direction), 3.0 * kFew * sizeof(float)) << side << direction;
    }
  }
}

TEST_F(SharedMemoryTest, ManyCallsOfSeveralThreadsAtATimeKeepTheirValuesApart) {
  constexpr uint64_t kThreads = 4, kPushes = 10, kPullsAtATime = 2;
  ASSERT_NO_FATAL_FAILURE(StartPs(config_));
  ASSERT_NO_FATAL_FAILURE(Connect(config_));
  EXPECT_EQ(PullNow(), SumOf(0));
  const MetricGrowth growth;
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([this, thread] {
      Numbers pulled[kPullsAtATime];
      for (uint64_t n = 0; n < kPushes; ++n) {
        const uint64_t push = thread * kPushes + n;
        const absl::Status sent = Push(push, NumbersOf(push));
        ASSERT_TRUE(sent.ok()) << sent;
        std::latch done(kPullsAtATime);
        for (Numbers& numbers : pulled) {
          numbers.assign(kNumbers, -1e9f);
          Pull(&numbers, [&done](const absl::Status& status, const worker::ShardVersions&) {
            EXPECT_TRUE(status.ok()) << status;
            done.count_down();
          });
        }
        done.wait();
        // Some pushes are in it and others are not, each of which adds an integer from -5 to 5.
        for (const Numbers& numbers : pulled) {
          uint64_t wrong = 0;
          for (const float number : numbers) wrong += !(std::abs(number) <= 200) || std::floor(number) != number;
          ASSERT_EQ(wrong, 0) << "of thread " << thread << " after push " << n;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(client_->Flush().ok());
  EXPECT_EQ(PullNow(), SumOf(kThreads * kPushes));
  ExpectShared(growth, kThreads * kPushes, kThreads * kPushes * kPullsAtATime + 1);
}

TEST_F(SharedMemoryTest, APsThatComesBackHasEverythingAndSharesAgain) {
  config_.mutable_server()->set_data_dir(MakeTestFolder());
  ASSERT_NO_FATAL_FAILURE(StartPs(config_));
  ASSERT_NO_FATAL_FAILURE(Connect(config_));
  EXPECT_EQ(PullNow(), SumOf(0));
  uint64_t push = 0;
  for (int life = 0; life < 3; ++life) {
    const MetricGrowth growth;
    for (const uint64_t last = push + 3; push < last; ++push) EXPECT_EQ(PushPull(push), SumOf(push + 1));
    for (const char* side : {"ps", "worker"}) {
      for (const char* direction : {"push", "pull"}) EXPECT_GT(Shared(growth, side, direction), 0) << side << direction;
    }

    // Some are under way when it goes.
    for (const uint64_t last = push + 6; push < last; ++push) ASSERT_TRUE(Push(push, NumbersOf(push)).ok());
    StopPs();
    ASSERT_NO_FATAL_FAILURE(StartPs(config_));
    const absl::Status flushed = client_->Flush();
    ASSERT_TRUE(flushed.ok()) << flushed;
    EXPECT_EQ(PullNow(), SumOf(push));
  }
}

TEST_F(SharedMemoryTest, AWorkerThatShallNotShareSendsMessages) {
  ASSERT_NO_FATAL_FAILURE(StartPs(config_));
  config_.mutable_cluster()->set_shared_memory(false);
  ASSERT_NO_FATAL_FAILURE(Connect(config_));
  ExpectMessagesOnly();
}

TEST_F(SharedMemoryTest, APsThatShallNotShareGetsMessages) {
  v1::Config of_ps = config_;
  of_ps.mutable_cluster()->set_shared_memory(false);
  ASSERT_NO_FATAL_FAILURE(StartPs(of_ps));
  ASSERT_NO_FATAL_FAILURE(Connect(config_));
  ExpectMessagesOnly();
}

TEST_F(SharedMemoryTest, WhereWhoCallsIsAskedForNothingIsShared) {
  const std::string folder = MakeTestFolder();
  const auto config_of = [&](const std::string& name) {
    PutFile(absl::StrCat(folder, "/", name), name + "-token\n");
    v1::Config config = config_;
    config.mutable_security()->set_identities(folder + "/identities.yaml");
    config.mutable_security()->set_token(absl::StrCat(folder, "/", name));
    return config;
  };
  PutFile(folder + "/identities.yaml", absl::StrCat("identities:\n", server::IdentityLine("ps", ", role: admin"),
                                                    server::IdentityLine("wanda", ", role: worker")));
  ASSERT_NO_FATAL_FAILURE(StartPs(config_of("ps")));
  ASSERT_NO_FATAL_FAILURE(Connect(config_of("wanda")));
  ExpectMessagesOnly();
}

}  // namespace
}  // namespace lodestone
