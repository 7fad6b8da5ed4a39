// What becomes of a push and a pull that go together.
#include "worker/client/push_pull.h"

#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/client/client_fixture.h"
#include "worker/client/push_pairing.h"

namespace lodestone::worker {
namespace {

constexpr uint32_t kPairServers = 2;
constexpr uint32_t kPairShards = 8;
constexpr uint32_t kPairDim = 2;

class PushPullTest : public ClientFixture {
 protected:
  PushPullTest() : ClientFixture(kPairServers, kPairShards, /*elements=*/20'000, kPairDim) {
    for (Key key = 0; key < 100; ++key) keys_.push_back(key * 3);
    gradients_.assign(keys_.size() * kPairDim, 1);
  }

  void Connect() {
    ones_.assign(elements_, 1);
    ClientFixture::Connect();
  }

  // Pushes ones to the dense table and the rows of `keys_`, and reads the table and the rows of `pulled`.
  struct Outcome {
    absl::Status status;
    ShardVersions versions;
    std::vector<float> dense;
    std::vector<float> rows;
  };
  Outcome PushPull(std::span<const Key> pulled) {
    Outcome outcome;
    outcome.dense.assign(ones_.size(), -1);
    outcome.rows.assign(pulled.size() * kPairDim, -1);
    const DenseGradient dense{&tables_[0], ones_.data(), true};
    const RowGradients rows{&tables_[1], keys_, gradients_.data()};
    std::promise<void> done;
    const absl::Status sent = client_->PushPull(
        ++clock_, {&dense, 1}, {&rows, 1}, {}, {{&tables_[0], outcome.dense.data()}},
        {{&tables_[1], pulled, outcome.rows.data()}}, [&](Client::PushResult result, ShardVersions versions) {
          outcome.status = std::move(result.status);
          outcome.versions = std::move(versions);
          done.set_value();
        });
    if (!sent.ok()) return {sent, {}, {}, {}};
    done.get_future().wait();
    return outcome;
  }
  // Expects that `pushes` of them have counted, each once.
  void ExpectOutcome(const Outcome& outcome, float pushes) const {
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.dense, std::vector<float>(outcome.dense.size(), pushes));
    EXPECT_EQ(outcome.rows, std::vector<float>(outcome.rows.size(), pushes));
    ASSERT_EQ(outcome.versions.size(), kPairShards);
    for (const Version version : outcome.versions) EXPECT_GT(version, 0);
  }
  uint64_t Calls(const std::string& method) const {
    uint64_t calls = 0;
    for (uint32_t server = 0; server < kPairServers; ++server) calls += cluster_.calls(server, method);
    return calls;
  }
  // What is done to the first `times` calls of `method` at `server`.
  void SetFault(uint32_t server, const std::string& method, Fault fault, uint64_t times) {
    cluster_.SetFaults([=](uint32_t of, const std::string& called, uint64_t call) {
      return of == server && called == method && call <= times ? fault : Fault::kNone;
    });
  }

  std::vector<Key> keys_;
  std::vector<float> gradients_;
  std::vector<float> ones_;
  Clock clock_ = 0;
};

TEST_F(PushPullTest, IsOneCallToEachServerAndReadsWhatItHasPushed) {
  Connect();
  for (int i = 1; i <= 5; ++i) ExpectOutcome(PushPull(keys_), static_cast<float>(i));
  EXPECT_EQ(Calls("PushPull"), 5 * kPairServers);
  EXPECT_EQ(Calls("Push") + Calls("Pull"), 0);
  EXPECT_EQ(cluster_.lists().first, kPairServers);  // The push's keys and the pull's are one list.
  EXPECT_EQ(cluster_.lists().remembered, 3 * kPairServers);
  EXPECT_TRUE(client_->Flush().ok());
}

TEST_F(PushPullTest, ReadsOtherRowsThanItPushes) {
  Connect();
  const std::vector<Key> others = {3, 1'000'000'007, 6};
  const Outcome outcome = PushPull(others);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.rows, (std::vector<float>{1, 1, 0, 0, 1, 1}));
  EXPECT_EQ(Calls("PushPull"), kPairServers);
}

// A worker that waits for its pushes lets the pull of the next step go along with a range's.
TEST_F(PushPullTest, AStepOfARangeKeepsItsIdentity) {
  Connect();
  const RangeSession range = client_->OpenRange(77);
  std::vector<float> dense(ones_.size(), -1);
  const auto push = [&](Sequence sequence) {
    const DenseGradient gradient{&tables_[0], ones_.data(), true};
    std::promise<absl::Status> done;
    const absl::Status sent =
        client_->PushPull(StepOrigin(++clock_, range, sequence), {&gradient, 1}, {}, {}, {{&tables_[0], dense.data()}},
                          {}, [&](Client::PushResult result, ShardVersions) { done.set_value(result.status); });
    return sent.ok() ? done.get_future().get() : sent;
  };
  for (const Sequence sequence : {1, 2, 2}) ASSERT_TRUE(push(sequence).ok());
  EXPECT_EQ(dense, std::vector<float>(dense.size(), 2)) << "the second step, computed twice, counts once";
  EXPECT_EQ(Calls("Pull"), 0);
}

TEST_F(PushPullTest, ALargeTableGoesInSeveralCallsWhoseBlocksMatch) {
  elements_ = 3'000'000;  // 12 MB, 6 of them to each server.
  Connect();
  for (int i = 1; i <= 2; ++i) ExpectOutcome(PushPull(keys_), static_cast<float>(i));
  EXPECT_GT(Calls("PushPull"), 2 * 2 * kPairServers);
  EXPECT_EQ(Calls("Push") + Calls("Pull"), 0);
}

TEST_F(PushPullTest, APullThatIsLongerThanThePushComesAfterIt) {
  elements_ = 3'000'000;
  Connect();
  std::vector<float> values(ones_.size(), -1);
  const RowGradients rows{&tables_[1], keys_, gradients_.data()};
  std::promise<absl::Status> done;
  ASSERT_TRUE(client_
                  ->PushPull(1, {}, {&rows, 1}, {}, {{&tables_[0], values.data()}}, {},
                             [&](Client::PushResult result, const ShardVersions&) { done.set_value(result.status); })
                  .ok());
  const absl::Status status = done.get_future().get();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(values, std::vector<float>(values.size(), 0));
  EXPECT_EQ(Calls("PushPull"), 0);
  EXPECT_EQ(Calls("Push"), kPairServers);
  EXPECT_GT(Calls("Pull"), kPairServers);
}

TEST_F(PushPullTest, AnAnswerThatIsLostIsAskedForAgainAndThePushCountsOnce) {
  Connect();
  SetFault(1, "PushPull", Fault::kDropReply, 3);
  ExpectOutcome(PushPull(keys_), 1);
  EXPECT_EQ(cluster_.calls(1, "PushPull"), 4);
}

TEST_F(PushPullTest, WhatIsTurnedBackIsPushedAndPulledByThoseWhoOwnIt) {
  Connect();
  ExpectOutcome(PushPull(keys_), 1);
  cluster_.MoveShards({{1, 0}, {3, 0}, {4, 1}});
  ExpectOutcome(PushPull(keys_), 2);
  EXPECT_GT(Calls("Push"), 0);
  const uint64_t together = Calls("PushPull");
  ExpectOutcome(PushPull(keys_), 3);
  EXPECT_EQ(Calls("PushPull"), together + kPairServers);
  EXPECT_TRUE(client_->Health().ok());
}

TEST_F(PushPullTest, AnAnswerThatIsNoneIsAnErrorThatNamesThePush) {
  Connect();
  SetFault(0, "PushPull", Fault::kShort, 1);
  const Outcome outcome = PushPull(keys_);
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInternal);
  EXPECT_NE(outcome.status.message().find("push sequence="), std::string::npos) << outcome.status;
  EXPECT_NE(outcome.status.message().find("bytes, expected were"), std::string::npos) << outcome.status;
}

TEST_F(PushPullTest, WithoutAnythingToReadItIsAPushAndWithoutAnythingToPushAPull) {
  Connect();
  const RowGradients rows{&tables_[1], keys_, gradients_.data()};
  std::vector<float> values(keys_.size() * kPairDim, -1);
  for (const bool pushes : {true, false}) {
    std::promise<absl::Status> done;
    std::vector<RowPull> pulls;
    if (!pushes) pulls.push_back({&tables_[1], keys_, values.data()});
    ASSERT_TRUE(client_
                    ->PushPull(++clock_, {}, {&rows, pushes ? 1u : 0u}, {}, {}, pulls,
                               [&](Client::PushResult result, const ShardVersions&) { done.set_value(result.status); })
                    .ok());
    EXPECT_TRUE(done.get_future().get().ok());
  }
  EXPECT_EQ(values, std::vector<float>(values.size(), 1));
  EXPECT_EQ(Calls("PushPull"), 0);
}

// Messages of parts {shard, items}, all of server 0; no items: rows.
Routing RoutingOf(const TableHandle& table,
                  const std::vector<std::vector<std::pair<ShardId, std::vector<uint32_t>>>>& messages) {
  Routing routing;
  for (const auto& parts : messages) {
    ShardMessage message;
    for (const auto& [shard, items] : parts) {
      routing.orders.push_back(items);
      message.parts.push_back({shard, &table, !items.empty(), 0, routing.orders.back()});
    }
    routing.messages.push_back(std::move(message));
  }
  return routing;
}

TEST(PairMessages, PairsOnlyWhatReadsAllThatIsPushed) {
  const TableHandle table;
  const Routing push = RoutingOf(table, {{{0, {0}}, {1, {1, 5}}}, {{1, {9}}, {2, {2}}}});
  const auto pairs = [&](const Routing& pull) {
    return PairMessages(push.messages, pull.messages, 4, [](size_t, size_t) { return false; });
  };
  EXPECT_EQ(pairs(push), (std::vector<int>{0, 1}));
  EXPECT_EQ(pairs(RoutingOf(table, {{{0, {0, 4}}}})), (std::vector<int>{0, -1}));
  EXPECT_EQ(pairs(RoutingOf(table, {{{3, {3}}}, {{3, {7}}, {2, {}}}})), (std::vector<int>{0, 1}));
  // Shard 1 is pushed by both, and these are not the blocks of the one.
  EXPECT_EQ(pairs(RoutingOf(table, {{{1, {1}}}})), std::vector<int>());
  EXPECT_EQ(pairs(RoutingOf(table, {{{1, {}}}})), std::vector<int>());
  // Shard 2 is pushed by the second.
  EXPECT_EQ(pairs(RoutingOf(table, {{{2, {6}}}})), std::vector<int>());
  // Rows of a shard that both push are like blocks, if they are the same.
  const Routing rows = RoutingOf(table, {{{1, {}}}, {{1, {}}}});
  const auto same = [&](bool same_keys) {
    return PairMessages(rows.messages, rows.messages, 4, [=](size_t, size_t) { return same_keys; }).size();
  };
  EXPECT_EQ(same(true), 2);
  EXPECT_EQ(same(false), 0);
  // So are those of several tables, whose parts may lie in another order.
  TableHandle other;
  other.id = 1;
  Routing tables = RoutingOf(table, {{{1, {3}}, {1, {4}}}, {{1, {5}}, {1, {6}}}});
  for (ShardMessage& message : tables.messages) message.parts[1].table = &other;
  const Routing swapped = RoutingOf(table, {{{1, {4}}, {1, {3}}}, {{1, {6}}, {1, {5}}}});
  const auto reversed = [&](const TableHandle* first) {
    Routing pull = swapped;
    for (ShardMessage& message : pull.messages) message.parts[0].table = first;
    return PairMessages(tables.messages, pull.messages, 4, [](size_t, size_t) { return false; }).size();
  };
  EXPECT_EQ(reversed(&other), 2);
  EXPECT_EQ(reversed(&table), 0);
  // More than are pushed.
  EXPECT_EQ(pairs(RoutingOf(table, {{{3, {3}}}, {{3, {7}}}, {{3, {11}}}})), std::vector<int>());
}

}  // namespace
}  // namespace lodestone::worker
