#include "worker/client/client.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/random.h"
#include "gtest/gtest.h"
#include "tests/worker/client/client_fixture.h"
#include "tests/worker/rpc/fake_cluster.h"

namespace lodestone::worker {
namespace {

constexpr uint32_t kRowDim = 3;

class ClientTest : public ClientFixture {
 protected:
  static constexpr uint64_t kElements = 20'000;  // Five blocks.

  ClientTest() : ClientFixture(/*servers=*/2, /*shards=*/8, kElements, kRowDim) {}

  // Pushes ones to the whole dense table.
  absl::Status PushOnes(std::function<void(Client::PushResult)> done) {
    const DenseGradient dense{&tables_[0], ones_.data()};
    return client_->Push(1, {&dense, 1}, {}, {}, std::move(done));
  }
  // The same, waiting for what becomes of it.
  Client::PushResult PushOnesNow() {
    std::promise<Client::PushResult> result;
    const absl::Status status = PushOnes([&](Client::PushResult r) { result.set_value(std::move(r)); });
    return status.ok() ? result.get_future().get() : Client::PushResult{status, {}};
  }
  absl::Status PullDense(std::vector<float>* values) {
    values->assign(kElements, -1);
    return client_->PullNow({{&tables_[0], values->data()}}, {}).status();
  }
  void ExpectAll(float value) {
    std::vector<float> values;
    ASSERT_TRUE(PullDense(&values).ok());
    EXPECT_EQ(values, std::vector<float>(kElements, value));
  }

  void SumFromManyThreads(const std::function<void()>& meanwhile);

  const std::vector<float> ones_ = std::vector<float>(kElements, 1);
};

// Pushes from four threads, some of whose calls fail, while `meanwhile` runs; then checks the sums.
void ClientTest::SumFromManyThreads(const std::function<void()>& meanwhile) {
  constexpr int kThreads = 4, kPushes = 25;
  constexpr uint64_t kSeed = 20'261'121;
  RecordProperty("seed", std::to_string(kSeed));
  cluster_.SetFaults([](uint32_t server, const std::string& method, uint64_t call) {
    if (method != "Push") return Fault::kNone;
    const uint64_t bits = RandomBits(kSeed + server, call) % 10;
    return bits < 2 ? Fault::kDropReply : bits < 4 ? Fault::kRefuse : Fault::kNone;
  });
  Connect();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const std::vector<Key> keys = {1, 2, 3, static_cast<Key>(100 + t)};
      const std::vector<float> rows(keys.size() * kRowDim, 2);
      const DenseGradient dense{&tables_[0], ones_.data()};
      const RowGradients embedding{&tables_[1], keys, rows.data()};
      for (int i = 0; i < kPushes; ++i) {
        EXPECT_TRUE(client_->Push(i, {&dense, 1}, {&embedding, 1}, {}, nullptr).ok());
      }
    });
  }
  meanwhile();
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(client_->Flush().ok());
  ExpectAll(kThreads * kPushes);
  EXPECT_EQ(cluster_.RowOf(tables_[1].id, 2), std::vector<float>(kRowDim, 2 * kThreads * kPushes));
  EXPECT_EQ(cluster_.RowOf(tables_[1].id, 103), std::vector<float>(kRowDim, 2 * kPushes));
}

TEST_F(ClientTest, PullsWhatWasPushed) {
  Connect();
  std::vector<float> gradient(kElements);
  for (size_t i = 0; i < kElements; ++i) gradient[i] = static_cast<float>(i);
  const std::vector<Key> keys = {7, 1'000'000'007, 0, ~0ull};
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const DenseGradient dense{&tables_[0], gradient.data()};
  const RowGradients embedding{&tables_[1], keys, rows.data()};
  std::promise<Client::PushResult> result;
  ASSERT_TRUE(client_->Push(1, {&dense, 1}, {&embedding, 1}, {}, [&](auto r) { result.set_value(r); }).ok());
  ASSERT_TRUE(result.get_future().get().status.ok());

  const std::vector<Key> asked = {0, 7, 5, 0, ~0ull, 7};  // Duplicates, and one that nobody pushed.
  std::vector<float> dense_values(kElements), row_values(asked.size() * kRowDim, -1);
  const auto versions =
      client_->PullNow({{&tables_[0], dense_values.data()}}, {{&tables_[1], asked, row_values.data()}});
  ASSERT_TRUE(versions.ok()) << versions.status();
  EXPECT_EQ(dense_values, gradient);
  EXPECT_EQ(row_values, (std::vector<float>{7, 8, 9, 1, 2, 3, 0, 0, 0, 7, 8, 9, 10, 11, 12, 1, 2, 3}));
  ASSERT_EQ(versions->size(), 8);
  for (BlockIndex block = 0; block < tables_[0].layout.block_count(); ++block) {
    EXPECT_EQ((*versions)[ShardOfBlock(tables_[0].id, block, 8)], 1);
  }
}

TEST_F(ClientTest, AContributionGoesToEveryShardAndAPullOfStepsSaysHowManyItWaitsFor) {
  Connect();
  const DenseGradient dense{&tables_[0], ones_.data()};
  const RowGradients none{&tables_[1], {}, nullptr};
  v1::Contribution contribution;
  contribution.set_step(5);
  contribution.set_batch(2);
  contribution.set_samples(64);
  std::promise<Client::PushResult> pushed;
  ASSERT_TRUE(client_->Push({1, contribution}, {&dense, 1}, {&none, 1}, {}, [&](auto r) { pushed.set_value(r); }).ok());
  EXPECT_TRUE(pushed.get_future().get().status.ok());
  std::set<ShardId> with_rows;
  for (const auto& push : cluster_.pushes()) {
    EXPECT_EQ(push.header.contribution().step(), 5u);
    EXPECT_EQ(push.header.contribution().batch(), 2u);
    EXPECT_EQ(push.header.contribution().samples(), 64u);
    for (const v1::Part& part : push.header.parts()) {
      EXPECT_EQ(part.more(), v1::Part::NOTHING) << "a shard gets all of it in one message";
      if (part.table() == tables_[1].id) with_rows.insert(part.shard());
    }
  }
  EXPECT_EQ(with_rows.size(), 8u);
  std::vector<float> values(kElements);
  std::promise<absl::Status> pulled;
  client_->PullSteps({.steps_min = 6}, {{&tables_[0], values.data()}}, {},
                     [&](absl::Status status, ShardVersions, uint64_t) { pulled.set_value(std::move(status)); });
  EXPECT_TRUE(pulled.get_future().get().ok());
  EXPECT_EQ(values, ones_);
}

TEST_F(ClientTest, RetriesAPushWithTheSameSequenceAndBytesSoThatItCountsOnce) {
  cluster_.SetFaults([](uint32_t, const std::string& method, uint64_t call) {
    if (method != "Push") return Fault::kNone;
    return call == 1 ? Fault::kDropReply : call == 2 ? Fault::kRefuse : Fault::kNone;
  });
  Connect();
  EXPECT_TRUE(PushOnesNow().status.ok());
  std::map<uint32_t, std::vector<std::string>> bytes;
  for (const auto& push : cluster_.pushes()) bytes[push.server].push_back(push.bytes);
  for (uint32_t server : {0, 1}) {
    ASSERT_EQ(bytes[server].size(), 2);  // The refused one was not looked at.
    EXPECT_EQ(bytes[server][0], bytes[server][1]);
    EXPECT_EQ(cluster_.calls(server, "Push"), 3);
  }
  ExpectAll(1);
}

TEST_F(ClientTest, RetriesWhenNoAnswerComesInTime) {
  cluster_.SetFaults([](uint32_t server, const std::string& method, uint64_t call) {
    return server == 1 && (method == "Push" || method == "Pull") && call <= 2 ? Fault::kSilence : Fault::kNone;
  });
  v1::Config config = cluster_.config();
  config.mutable_worker()->set_call_timeout_ms(300);
  Connect(config);
  EXPECT_TRUE(PushOnesNow().status.ok());
  ExpectAll(1);
  EXPECT_GE(cluster_.calls(1, "Push"), 3);
  EXPECT_GE(cluster_.calls(1, "Pull"), 3);
}

TEST_F(ClientTest, CopesWithAnswersOutOfOrder) {
  cluster_.SetFaults(
      [](uint32_t, const std::string& method, uint64_t) { return method == "Push" ? Fault::kHold : Fault::kNone; });
  Connect();
  std::latch done(4);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(PushOnes([&](Client::PushResult result) {
                  EXPECT_TRUE(result.status.ok()) << result.status;
                  done.count_down();
                }).ok());
  }
  cluster_.AwaitCalls(0, "Push", 4);
  cluster_.AwaitCalls(1, "Push", 4);
  cluster_.SetFaults(nullptr);
  cluster_.ReleaseHeld();
  done.wait();
  EXPECT_TRUE(client_->Flush().ok());
  ExpectAll(4);
}

TEST_F(ClientTest, KeepsNoMorePushesUnacknowledgedThanTheWindowAllows) {
  std::atomic<int> sent{0}, acknowledged{0}, most{0};
  cluster_.SetFaults([&](uint32_t server, const std::string& method, uint64_t) {
    if (method != "Push" || server != 0) return Fault::kNone;
    most = std::max<int>(most, ++sent - acknowledged);  // Under the cluster's lock.
    return Fault::kHold;
  });
  v1::Config config = cluster_.config();
  config.mutable_worker()->set_pushes_in_flight_max(2);
  Connect(config);
  std::thread pushing([&] {
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(PushOnes([&](Client::PushResult) { ++acknowledged; }).ok());
    EXPECT_TRUE(client_->Flush().ok());
  });
  for (uint64_t call = 2; call <= 10; call += 2) {
    cluster_.AwaitCalls(0, "Push", call);
    cluster_.ReleaseHeld();
  }
  pushing.join();
  EXPECT_EQ(acknowledged, 10);
  EXPECT_EQ(most, 2);
  ExpectAll(10);
}

TEST_F(ClientTest, TellsWhatItWaitedForWhenItGivesUp) {
  v1::Config config = cluster_.config();
  config.mutable_worker()->set_retry_timeout_ms(200);
  Connect(config);
  cluster_.SetFaults([](uint32_t server, const std::string& method, uint64_t) {
    return server == 1 && method == "Push" ? Fault::kRefuse : Fault::kNone;
  });
  const absl::Status status = PushOnesNow().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(status, "push sequence=")) << status;
  EXPECT_TRUE(Contains(status, "ps 1 at 127.0.0.1:")) << status;
  EXPECT_TRUE(Contains(status, "attempt ")) << status;
  EXPECT_TRUE(Contains(status, "refused by the test")) << status;
  EXPECT_EQ(client_->Flush(), status);
  EXPECT_TRUE(client_->Health().ok());
}

TEST_F(ClientTest, TablesAreMadeAtAllServersAtOnceHoweverLateOneAnswers) {
  Connect();
  const uint64_t made[] = {cluster_.calls(0, "EnsureTables"), cluster_.calls(1, "EnsureTables")};
  cluster_.SetFaults([](uint32_t, const std::string& method, uint64_t) {
    return method == "EnsureTables" ? Fault::kHold : Fault::kNone;
  });
  absl::Status status = absl::UnknownError("not made yet");
  std::thread making([&] { status = client_->EnsureTables({RowsSpec("s", kRowDim)}).status(); });
  // A client that awaits the answer of one before it asks the other never gets there.
  for (const uint32_t server : {0, 1}) cluster_.AwaitCalls(server, "EnsureTables", made[server] + 1);
  cluster_.ReleaseHeld();
  making.join();
  EXPECT_TRUE(status.ok()) << status;
  for (const uint32_t server : {0, 1}) EXPECT_EQ(cluster_.calls(server, "EnsureTables"), made[server] + 1);
}

TEST_F(ClientTest, TheErrorOfAPullNamesItsFirstTables) {
  Connect();
  auto more = client_->EnsureTables({RowsSpec("s", kRowDim), RowsSpec("t", kRowDim), RowsSpec("u", kRowDim)});
  ASSERT_TRUE(more.ok()) << more.status();
  cluster_.SetFaults(
      [](uint32_t, const std::string& method, uint64_t) { return method == "Pull" ? Fault::kForget : Fault::kNone; });
  std::vector<float> dense(kElements), row(kRowDim);
  const std::vector<Key> keys = {7};
  std::vector<RowPull> rows = {{&tables_[1], keys, row.data()}};
  for (const TableHandle& table : *more) rows.push_back({&table, keys, row.data()});
  const absl::Status all = client_->PullNow({{&tables_[0], dense.data()}}, rows).status();
  EXPECT_TRUE(Contains(all, "pull of d,r,s and 2 more to ps ")) << all;
  Connect();
  const absl::Status two = client_->PullNow({{&tables_[0], dense.data()}}, {{&tables_[1], keys, row.data()}}).status();
  EXPECT_TRUE(Contains(two, "pull of d,r to ps ")) << two;
}

TEST_F(ClientTest, IsLostWhenAServerHasForgottenIt) {
  Connect();
  cluster_.SetFaults(
      [](uint32_t, const std::string& method, uint64_t) { return method == "Push" ? Fault::kForget : Fault::kNone; });
  EXPECT_EQ(PushOnesNow().status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(cluster_.calls(0, "Push"), 1) << "not tried again";
  EXPECT_EQ(client_->Health().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Contains(client_->Health(), "no longer part of the cluster")) << client_->Health();
  cluster_.SetFaults(nullptr);
  EXPECT_FALSE(PushOnes(nullptr).ok());
  std::vector<float> values;
  EXPECT_FALSE(PullDense(&values).ok());
  EXPECT_FALSE(client_->AwaitClock(1).ok());
}

TEST_F(ClientTest, IsLostWhenItsLeaseHasEnded) {
  Connect();
  cluster_.SetFaults([](uint32_t, const std::string& method, uint64_t) {
    return method == "Heartbeat" ? Fault::kForget : Fault::kNone;
  });
  while (client_->Health().ok()) std::this_thread::yield();  // The next heartbeat finds out.
  EXPECT_TRUE(Contains(client_->Health(), "lease")) << client_->Health();
}

// What was sent to the former place and is not answered, and what pauses between two attempts.
TEST_F(ClientTest, SendsWhatIsUnansweredToThePsWhereverItComesBack) {
  for (const bool still_listens : {false, true}) {
    const uint64_t sent = cluster_.calls(1, "Push");
    cluster_.SetFaults([=](uint32_t server, const std::string& method, uint64_t call) {
      if (server != 1 || method != "Push") return Fault::kNone;
      return call == sent + 1 ? Fault::kSilence : Fault::kRefuse;  // Applied, or not.
    });
    Connect();
    std::latch done(2);
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(PushOnes([&](const Client::PushResult& result) {
                    EXPECT_TRUE(result.status.ok()) << result.status;
                    done.count_down();
                  }).ok());
    }
    cluster_.AwaitCalls(1, "Push", sent + 3);
    cluster_.SetFaults(nullptr);
    cluster_.Move(1, still_listens);
    HurryHeartbeat();
    done.wait();
    EXPECT_TRUE(client_->Flush().ok());
    EXPECT_TRUE(client_->Health().ok());
    ExpectAll(still_listens ? 4 : 2);
    EXPECT_EQ(client_->shard_map()->epoch(), still_listens ? 3 : 2);
  }
  std::map<Sequence, std::set<std::string>> bytes;  // Of the second client's pushes.
  for (const auto& push : cluster_.pushes()) {
    if (push.server == 1 && push.header.worker_incarnation() == client_->incarnation()) {
      bytes[push.header.sequence()].insert(push.bytes);
    }
  }
  ASSERT_EQ(bytes.size(), 2);
  for (const auto& [sequence, different] : bytes) EXPECT_EQ(different.size(), 1) << "sequence " << sequence;
}

TEST_F(ClientTest, CallsThatComeLaterGoWhereThePsIs) {
  Connect();
  cluster_.Move(1, /*still_listens=*/true);
  HurryHeartbeat();
  EXPECT_TRUE(PushOnesNow().status.ok());
  ExpectAll(1);
  const auto tables = client_->EnsureTables({DenseSpec("later", 100)});
  EXPECT_TRUE(tables.ok()) << tables.status();
}

TEST_F(ClientTest, GivesUpAfterItsTimeWhereverThePsIs) {
  v1::Config config = cluster_.config();
  config.mutable_worker()->set_retry_timeout_ms(200);
  Connect(config);
  cluster_.SetFaults([](uint32_t server, const std::string& method, uint64_t) {
    return server == 1 && method == "Push" ? Fault::kRefuse : Fault::kNone;
  });
  cluster_.Move(1);
  HurryHeartbeat();
  std::vector<float> values;
  while (!PullDense(&values).ok()) std::this_thread::yield();  // Until it has turned to the new address.
  const absl::Status status = PushOnesNow().status;
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(Contains(status, "ps 1 at " + client_->shard_map()->AddressOf(1))) << status;
}

TEST_F(ClientTest, NamesTheServerWhoseAnswerIsGarbage) {
  Connect();
  for (Fault fault : {Fault::kGarbage, Fault::kShort}) {
    cluster_.SetFaults([fault](uint32_t server, const std::string& method, uint64_t) {
      return server == 1 && method != "Heartbeat" ? fault : Fault::kNone;
    });
    const absl::Status push = PushOnesNow().status;
    EXPECT_EQ(push.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(Contains(push, "ps 1 at")) << push;
    std::vector<float> values;
    const absl::Status pull = PullDense(&values);
    EXPECT_EQ(pull.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(Contains(pull, "ps 1 at")) << pull;
    const absl::Status tables = client_->EnsureTables({DenseSpec("other", 100'000)}).status();
    EXPECT_EQ(tables.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(Contains(tables, "ps 1 at")) << tables;
  }
  EXPECT_TRUE(client_->Health().ok());
}

TEST_F(ClientTest, RefusesABriefAnswerThatNamesAShardMoreThanThePushHad) {
  Connect();
  ASSERT_TRUE(PushOnesNow().status.ok());
  cluster_.SetFaults([](uint32_t server, const std::string& method, uint64_t) {
    return server == 1 && method == "Push" ? Fault::kStrange : Fault::kNone;
  });
  const absl::Status push = PushOnesNow().status;
  EXPECT_EQ(push.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(Contains(push, "the answer names the shard in place")) << push;
  EXPECT_TRUE(Contains(push, "ps 1 at")) << push;
}

TEST_F(ClientTest, APsOfATimeBeforePartsOfSeveralShardsGetsOneForEachAndAnswersAtLength) {
  cluster_.lists().several_shards = false;
  Connect();
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE(PushOnesNow().status.ok());
    ExpectAll(static_cast<float>(i));
  }
}

TEST_F(ClientTest, EndsWhatIsUnderWayWhenItCloses) {
  Connect();
  cluster_.SetFaults([](uint32_t, const std::string& method, uint64_t call) {
    if (method == "Push") return call == 1 ? Fault::kSilence : Fault::kRefuse;  // One waits, one is in a pause.
    return method == "Pull" ? Fault::kSilence : Fault::kNone;
  });
  std::atomic<int> cancelled{0};
  std::vector<float> values(kElements);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(PushOnes([&](Client::PushResult r) { cancelled += absl::IsCancelled(r.status); }).ok());
  }
  client_->Pull({{&tables_[0], values.data()}}, {},
                [&](absl::Status status, ShardVersions) { cancelled += absl::IsCancelled(status); });
  cluster_.AwaitCalls(0, "Push", 3);
  cluster_.AwaitCalls(1, "Pull", 1);
  client_.reset();
  EXPECT_EQ(cancelled, 3);
  EXPECT_TRUE(cluster_.heartbeats().back().leaving());
}

// What `done` owns may be of something that ends after the client, as pinned memory is.
TEST_F(ClientTest, WhatABorrowedPushOwnsIsGoneWhenTheClientIs) {
  cluster_.SetFaults(
      [](uint32_t, const std::string& method, uint64_t) { return method == "Push" ? Fault::kSwallow : Fault::kNone; });
  for (int i = 0; i < 20; ++i) {
    Connect();
    auto owned = std::make_shared<int>(i);
    const std::weak_ptr<int> left = owned;
    const DenseGradient dense{&tables_[0], ones_.data(), /*borrowed=*/true};
    const absl::Status pushed =
        client_->Push(1, {&dense, 1}, {}, {}, [owned = std::move(owned)](const Client::PushResult&) {});
    ASSERT_TRUE(pushed.ok()) << pushed;
    client_.reset();
    EXPECT_TRUE(left.expired());
  }
}

TEST_F(ClientTest, CountsWhatItAndOthersPushedSinceTheValuesWereRead) {
  Connect();
  EXPECT_TRUE(PushOnesNow().status.ok());  // Versions 1: a 0 would mean that nothing was read.
  std::vector<float> values(kElements);
  const auto read = client_->PullNow({{&tables_[0], values.data()}}, {});
  ASSERT_TRUE(read.ok());
  auto other = *Client::Connect(cluster_.config());
  const auto tables = *other->EnsureTables({tables_[0].spec});
  const DenseGradient dense{tables.data(), ones_.data()};
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(other->Push(1, {&dense, 1}, {}, {}, nullptr).ok());
  ASSERT_TRUE(other->Flush().ok());

  EXPECT_TRUE(PushOnesNow().status.ok());  // Our own.
  std::promise<PushResult> pushed;
  ASSERT_TRUE(
      client_->Push(2, {&dense, 1}, {}, {*read, {}}, [&](const PushResult& result) { pushed.set_value(result); }).ok());
  const PushResult result = pushed.get_future().get();
  ASSERT_EQ(result.delays.size(), 1u);
  EXPECT_EQ(result.delays[0].table, dense.table);
  EXPECT_EQ(result.delays[0].delay.others, 3);
  EXPECT_EQ(result.delays[0].delay.own, 1);
}

TEST_F(ClientTest, SaysAtWhichVersionsValuesWereReadWhereTheRateGoesByTheDelay) {
  v1::Config config = cluster_.config();
  config.mutable_server()->set_message_max_bytes(40 << 10);  // Several messages to each server.
  Connect(config);
  v1::TableSpec spec = RowsSpec("by_delay", kRowDim);
  spec.mutable_consistency()->mutable_async()->set_rate(v1::Consistency::Async::BY_DELAY);
  const auto tables = client_->EnsureTables({spec, RowsSpec("full", kRowDim)});
  ASSERT_TRUE(tables.ok()) << tables.status();
  std::vector<Key> keys(20'000);
  std::iota(keys.begin(), keys.end(), 0);
  const std::vector<float> ones(keys.size() * kRowDim, 1);
  const RowGradients rows[] = {{tables->data(), keys, ones.data()}, {&(*tables)[1], {keys.data(), 1}, ones.data()}};
  ShardVersions read = {0, 11, 12, 13, 14, 15, 16, 17};  // Nothing was read of shard 0.
  ASSERT_TRUE(client_->Push(1, {}, rows, {{}, read}, nullptr).ok());
  ASSERT_TRUE(client_->Flush().ok());

  std::map<ShardId, std::map<Sequence, Version>> said;
  for (const auto& push : cluster_.pushes()) {
    for (const v1::Part& part : push.header.parts()) {
      ASSERT_EQ(part.read_versions_size(), part.table() == (*tables)[0].id ? 1 : 0);
      if (part.read_versions_size() == 1) said[part.shard()][push.header.sequence()] = part.read_versions(0);
    }
  }
  size_t several = 0;
  for (const auto& [shard, by_message] : said) {
    Version expected = read[shard];
    for (const auto& [sequence, version] : by_message) {
      EXPECT_EQ(version, expected) << "shard " << shard << " sequence " << sequence;
      if (shard > 0) ++expected;  // What the push itself has changed is no delay of it.
    }
    several += by_message.size() > 1;
  }
  EXPECT_EQ(said.size(), read.size());
  EXPECT_GT(several, 1u);
}

TEST_F(ClientTest, SpreadsCallsOverItsConnections) {
  v1::Config config = cluster_.config();
  config.mutable_worker()->set_connections_per_server(3);
  Connect(config);
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(PushOnesNow().status.ok());
  std::map<uint32_t, std::set<std::string>> peers;
  for (const auto& push : cluster_.pushes()) peers[push.server].insert(push.peer);
  EXPECT_EQ(peers[0].size(), 3);
  EXPECT_EQ(peers[1].size(), 3);
}

TEST_F(ClientTest, PacksNoMoreIntoAMessageThanAPsTakesAndRefusesACallThatFitsIntoNone) {
  v1::Config config = cluster_.config();
  config.mutable_server()->set_message_max_bytes(40 << 10);
  Connect(config);
  // Some that together are longer than a message and shorter than what is packed otherwise.
  constexpr int kPulls = 100;
  std::vector<Key> keys(500);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<std::vector<float>> values(kPulls, std::vector<float>(keys.size() * kRowDim));
  std::latch done(kPulls);
  for (std::vector<float>& dst : values) {
    client_->Pull({}, {{&tables_[1], keys, dst.data()}}, [&](const absl::Status& status, const ShardVersions&) {
      EXPECT_TRUE(status.ok()) << status;
      done.count_down();
    });
  }
  done.wait();

  std::vector<v1::TableSpec> many;
  for (int i = 0; i < 400; ++i) many.push_back(RowsSpec(std::string(150, 'n') + std::to_string(i), kRowDim));
  const absl::Status refused = client_->EnsureTables(many).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_TRUE(Contains(refused, "message_max_bytes is 40960")) << refused;
  EXPECT_TRUE(PushOnesNow().status.ok());
  ExpectAll(1);
}

// Regression: the first byte of a push to the last server came after all that was for the others.
TEST(Client, AServerDoesNotWaitForWhatAPushHasForTheOthers) {
  constexpr uint64_t kElements = 6'000'000;  // 24 MB, a third of them to each server.
  constexpr uint32_t kServers = 3;
  FakeCluster cluster(kServers, /*shards=*/kServers);
  auto client = Client::Connect(cluster.config());
  ASSERT_TRUE(client.ok()) << client.status();
  const auto tables = *(*client)->EnsureTables({DenseSpec("large", kElements)});
  const std::vector<float> gradient(kElements, 1);
  const DenseGradient large{tables.data(), gradient.data()};
  ASSERT_TRUE((*client)->Push(1, {&large, 1}, {}, {}, nullptr).ok());
  ASSERT_TRUE((*client)->Flush().ok());
  std::map<Sequence, uint32_t> order;  // As they were sent.
  for (const FakeCluster::Seen& push : cluster.pushes()) order[push.header.sequence()] = push.server;
  ASSERT_GE(order.size(), 2 * kServers);
  std::set<uint32_t> first;
  for (auto sent = order.begin(); first.size() < kServers; ++sent) {
    EXPECT_TRUE(first.insert(sent->second).second) << "server " << sent->second << " has a second turn";
  }
}

TEST(Client, CutsALargePushIntoMessagesWithSequencesOfTheirOwn) {
  constexpr uint64_t kElements = 3'000'000;  // 12 MB on one shard.
  FakeCluster cluster(1, 1);
  auto client = *Client::Connect(cluster.config());
  const auto tables = *client->EnsureTables({DenseSpec("large", kElements)});
  std::vector<float> gradient(kElements);
  for (size_t i = 0; i < kElements; ++i) gradient[i] = static_cast<float>(i);
  const DenseGradient dense{tables.data(), gradient.data()};
  ASSERT_TRUE(client->Push(1, {&dense, 1}, {}, {}, nullptr).ok());
  ASSERT_TRUE(client->Flush().ok());
  std::set<Sequence> sequences;
  size_t bytes = 0;
  for (const auto& push : cluster.pushes()) {
    EXPECT_LE(push.bytes.size(), (2u << 20) + (4u << 10));
    EXPECT_TRUE(sequences.insert(push.header.sequence()).second);
    bytes += push.bytes.size();
  }
  EXPECT_GE(bytes, kElements * sizeof(float));
  std::vector<float> values(kElements);
  ASSERT_TRUE(client->PullNow({{tables.data(), values.data()}}, {}).ok());
  EXPECT_EQ(values, gradient);
  EXPECT_GE(cluster.calls(0, "Pull"), 6) << "the answers are cut as well";
}

TEST(Client, WaitsForTheCoordinatorAndAllServers) {
  FakeCluster cluster(2, 4);
  cluster.SetFaults([](uint32_t, const std::string& method, uint64_t call) {
    return (method == "Join" || method == "Route") && call <= 3 ? Fault::kRefuse : Fault::kNone;
  });
  const auto client = Client::Connect(cluster.config());
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(cluster.calls(0, "Join"), 4);
  EXPECT_EQ(cluster.calls(0, "Route"), 4);
  EXPECT_EQ((*client)->index(), 0);
  EXPECT_EQ((*client)->incarnation(), 1001);
  EXPECT_EQ((*client)->shard_map()->servers(), 2);
}

TEST(Client, WaitsAtItsStartForAPsThatIsAway) {
  FakeCluster cluster(2, 4);
  cluster.SetAway(1, true);
  std::thread comes_back([&] {
    cluster.AwaitCalls(0, "Route", 3);
    cluster.SetAway(1, false);
  });
  const auto client = Client::Connect(cluster.config());
  comes_back.join();
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_GE(cluster.calls(0, "Route"), 4);

  cluster.SetAway(1, true);
  v1::Config config = cluster.config();
  config.mutable_coordinator()->set_join_timeout_ms(1000);
  const absl::Status late = Client::Connect(config).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Contains(late, "ps 1 is away; it was at 127.0.0.1:")) << late;
}

TEST(Client, SaysWhyItCouldNotJoin) {
  FakeCluster cluster(2, 4);
  cluster.SetFaults([](uint32_t, const std::string&, uint64_t) { return Fault::kRefuse; });
  v1::Config config = cluster.config();
  config.mutable_coordinator()->set_join_timeout_ms(200);
  const absl::Status refused = Client::Connect(config).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Contains(refused, "coordinator 127.0.0.1:")) << refused;
  EXPECT_TRUE(Contains(refused, "refused by the test")) << refused;

  cluster.SetFaults([](uint32_t, const std::string&, uint64_t) { return Fault::kForget; });
  EXPECT_EQ(Client::Connect(cluster.config()).status().code(), absl::StatusCode::kFailedPrecondition);
  cluster.SetFaults(nullptr);
  config.mutable_cluster()->set_shards(5);
  EXPECT_TRUE(Contains(Client::Connect(config).status(), "cluster.shards")) << Client::Connect(config).status();
  config.mutable_coordinator()->clear_address();
  EXPECT_TRUE(Contains(Client::Connect(config).status(), "coordinator.address"));
}

TEST(Client, ReportsProgressAndAChangeOfPhaseAtOnce) {
  FakeCluster cluster(1, 4);
  auto client = *Client::Connect(cluster.config());
  v1::WorkerProgress progress;
  progress.set_phase(v1::PHASE_TRAINING);
  progress.set_samples(12'345);
  client->ReportProgress(progress);
  const auto reported = [&] {
    for (const auto& heartbeat : cluster.heartbeats()) {
      if (heartbeat.progress().samples() == 12'345 && heartbeat.incarnation() == client->incarnation()) return true;
    }
    return false;
  };
  for (uint64_t calls = cluster.calls(0, "Heartbeat"); !reported(); ++calls) cluster.AwaitCalls(0, "Heartbeat", calls);
  client.reset();
  EXPECT_TRUE(cluster.heartbeats().back().leaving());
}

TEST(Client, AsksAgainUntilTheOthersHaveReachedTheClock) {
  FakeCluster cluster(1, 4);
  cluster.SetFaults([](uint32_t, const std::string& method, uint64_t call) {
    return method == "AwaitClock" && call == 2 ? Fault::kRefuse : Fault::kNone;
  });
  auto client = *Client::Connect(cluster.config());
  EXPECT_TRUE(client->AwaitClock(10).ok());  // "not yet", refused, "reached".
  EXPECT_EQ(cluster.calls(0, "AwaitClock"), 3);
}

TEST(Client, GoesOnWhileTheCoordinatorIsAwayAndAsksItAgain) {
  FakeCluster cluster(1, 4);
  cluster.SetFaults([](uint32_t, const std::string& method, uint64_t call) {
    return method == "AwaitClock" && call <= 2 ? Fault::kSilence : Fault::kNone;
  });
  auto client = *Client::Connect(cluster.config());
  std::thread waits([&] { EXPECT_TRUE(client->AwaitClock(10).ok()); });
  cluster.AwaitCalls(0, "AwaitClock", 1);
  uint64_t beats = 0;
  cluster.Restart(0, [&] {
    beats = cluster.calls(0, "Heartbeat");
    EXPECT_TRUE(client->Health().ok());
  });
  cluster.AwaitCalls(0, "AwaitClock", 2);  // As soon as it listens again.
  cluster.AwaitCalls(0, "Heartbeat", beats + 1);
  cluster.Restart(0, [] {});
  waits.join();
  EXPECT_TRUE(client->Health().ok());
  EXPECT_GE(cluster.calls(0, "AwaitClock"), 3);
}

// What a subscriber holds.
class Held {
 public:
  void Subscribe(Client* client, const TableHandle* table) {
    {
      MutexLock lock(&mu_);
      values_.resize(table->layout.elements, -1);
    }
    const absl::StatusOr<SubscriptionId> subscribed = client->Subscribe(
        {table}, {.on_block =
                      [this, table](const BlockUpdate& update) {
                        MutexLock lock(&mu_);
                        float* dst = values_.data() + uint64_t{update.block} * table->layout.block_elements;
                        update.values.CopyTo(dst);
                      },
                  .on_shard =
                      [this](ShardId shard, Version version) {
                        MutexLock lock(&mu_);
                        versions_[shard] = version;
                        ++shards_told_;
                        changed_.NotifyAll();
                      }});
    ASSERT_TRUE(subscribed.ok()) << subscribed.status();
    id_ = *subscribed;
  }
  SubscriptionId id() const { return id_; }
  // Waits until all values are `value`.
  void Await(float value) {
    MutexLock lock(&mu_);
    const std::vector<float> expected(values_.size(), value);
    while (values_ != expected) changed_.Wait(&mu_);
  }
  void AwaitShards(uint64_t told) {
    MutexLock lock(&mu_);
    while (shards_told_ < told) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<float> values_ ABSL_GUARDED_BY(mu_);
  std::map<ShardId, Version> versions_ ABSL_GUARDED_BY(mu_);
  uint64_t shards_told_ ABSL_GUARDED_BY(mu_) = 0;
  SubscriptionId id_ = 0;
};

TEST_F(ClientTest, SubscribesToAnAnchorAndThenToChanges) {
  Connect();
  Held held;
  held.Subscribe(client_.get(), &tables_[0]);
  held.Await(0);
  for (float value : {1, 2, 3}) {
    ASSERT_TRUE(PushOnesNow().status.ok());
    for (uint32_t server : {0, 1}) cluster_.Broadcast(server);
    held.Await(value);
  }
  EXPECT_EQ(cluster_.calls(0, "Subscribe"), 1);
  client_.reset();  // Before what it writes to.
}

TEST_F(ClientTest, UnsubscribesAndSubscribesAgain) {
  Connect();
  Held held;
  held.Subscribe(client_.get(), &tables_[0]);
  held.Await(0);
  client_->UnsubscribeAll();
  ASSERT_TRUE(PushOnesNow().status.ok());
  Held again;
  again.Subscribe(client_.get(), &tables_[0]);
  again.Await(1);
  for (uint32_t server : {0, 1}) cluster_.Broadcast(server);
  ASSERT_TRUE(PushOnesNow().status.ok());
  for (uint32_t server : {0, 1}) cluster_.Broadcast(server);
  again.Await(2);
  held.Await(0);  // It holds what it held.
  client_.reset();
}

TEST_F(ClientTest, UnsubscribesOneOfTwo) {
  Connect();
  Held ended, held;
  ended.Subscribe(client_.get(), &tables_[0]);
  held.Subscribe(client_.get(), &tables_[0]);
  ended.Await(0);
  held.Await(0);
  client_->Unsubscribe(ended.id());
  client_->Unsubscribe(ended.id());  // It has ended.
  ASSERT_TRUE(PushOnesNow().status.ok());
  for (uint32_t server : {0, 1}) cluster_.Broadcast(server);
  held.Await(1);
  ended.Await(0);
  client_.reset();
}

TEST_F(ClientTest, RenewsASubscriptionThatEndedOrHasAGap) {
  Connect();
  Held held;
  held.Subscribe(client_.get(), &tables_[0]);
  held.Await(0);
  ASSERT_TRUE(PushOnesNow().status.ok());
  cluster_.EndStreams(0);
  cluster_.Broadcast(1, true);  // The values come, but by an anchor.
  held.Await(1);
  cluster_.AwaitCalls(0, "Subscribe", 2);
  cluster_.AwaitCalls(1, "Subscribe", 2);
  held.AwaitShards(16);  // Two anchors of eight shards.
  ASSERT_TRUE(PushOnesNow().status.ok());
  for (uint32_t server : {0, 1}) cluster_.Broadcast(server);
  held.Await(2);
  client_.reset();
}

TEST_F(ClientTest, RenewsASubscriptionWhereverThePsComesBack) {
  Connect();
  Held held;
  held.Subscribe(client_.get(), &tables_[0]);
  held.Await(0);
  float value = 0;
  for (const bool still_listens : {true, false}) {
    const uint64_t subscribed = cluster_.calls(1, "Subscribe");
    cluster_.Move(1, still_listens);
    HurryHeartbeat();
    cluster_.AwaitCalls(1, "Subscribe", subscribed + 1);
    ASSERT_TRUE(PushOnesNow().status.ok());
    for (uint32_t server : {0, 1}) cluster_.Broadcast(server);
    held.Await(++value);
  }
  EXPECT_EQ(cluster_.calls(0, "Subscribe"), 1);
  client_.reset();  // Before what it writes to.
}

TEST_F(ClientTest, IsLostWhenASubscriptionIsRefusedForGood) {
  Connect();
  cluster_.SetFaults([](uint32_t, const std::string& method, uint64_t) {
    return method == "Subscribe" ? Fault::kForget : Fault::kNone;
  });
  Held held;
  held.Subscribe(client_.get(), &tables_[0]);
  while (client_->Health().ok()) std::this_thread::yield();
  EXPECT_TRUE(Contains(client_->Health(), "subscription at ps ")) << client_->Health();
  EXPECT_EQ(client_->Subscribe({&tables_[1]}, {}).status(), client_->Health());
  client_.reset();
}

TEST(Client, IsTurnedAwayWhereAnotherPsListensByNow) {
  FakeCluster cluster(3, 9);
  auto client = *Client::Connect(cluster.config());
  const auto tables = *client->EnsureTables({DenseSpec("d", 50'000)});
  const std::vector<float> ones(50'000, 1);
  const DenseGradient dense{tables.data(), ones.data()};
  ASSERT_TRUE(client->Push(1, {&dense, 1}, {}, {}, nullptr).ok());
  ASSERT_TRUE(client->Flush().ok());
  cluster.Swap(1, 2);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(client->Push(2, {&dense, 1}, {}, {}, nullptr).ok());
  EXPECT_TRUE(client->Flush().ok());
  EXPECT_TRUE(client->Health().ok()) << client->Health();
  for (uint64_t element : {0, 9'999, 30'000, 49'999}) EXPECT_EQ(cluster.ValueOf(tables[0].id, element), 4);
}

TEST_F(ClientTest, SumsExactlyFromManyThreadsWhileAPsMovesAndCallsFail) {
  SumFromManyThreads([this] {
    uint64_t calls = 0;
    for (int move = 0; move < 4; ++move) {
      cluster_.AwaitCalls(1, "Push", calls += 12);
      cluster_.Move(1, /*still_listens=*/move % 2 == 0);
      HurryHeartbeat();
    }
  });
}

TEST_F(ClientTest, SumsExactlyFromManyThreadsWhateverHappensToTheCalls) {
  SumFromManyThreads([] {});
}

}  // namespace
}  // namespace lodestone::worker
