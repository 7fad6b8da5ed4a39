// What becomes of a client's calls and subscriptions when shards change their owners.
#include <algorithm>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/wire/shard_map.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "tests/worker/client/client_fixture.h"
#include "tests/worker/rpc/fake_cluster.h"
#include "worker/client/client.h"
#include "worker/client/push_split.h"
#include "worker/client/rerouter.h"

namespace lodestone::worker {
namespace {

constexpr uint32_t kServers = 4;
constexpr uint32_t kShards = 12;
constexpr uint32_t kDim = 2;
constexpr uint64_t kElements = 60'000;  // A block of each shard, or two.

class RerouteTest : public ClientFixture {
 protected:
  RerouteTest() : ClientFixture(kServers, kShards, kElements, kDim) {
    for (size_t i = 0; i < kElements; ++i) gradient_[i] = static_cast<float>(i % 1000);
  }

  // Pushes the gradient, and the rows of `keys` with ones.
  void Push(const std::vector<Key>& keys, std::function<void(Client::PushResult)> done) {
    const std::vector<float> ones(keys.size() * kDim, 1);
    const DenseGradient dense{&tables_[0], gradient_.data(), /*borrowed=*/true};
    const RowGradients rows{&tables_[1], keys, ones.data()};
    ASSERT_TRUE(client_->Push(1, {&dense, 1}, {&rows, 1}, {}, std::move(done)).ok());
  }
  std::future<absl::Status> PushAll() {
    auto result = std::make_shared<std::promise<absl::Status>>();
    Push(keys_, [result](const Client::PushResult& pushed) { result->set_value(pushed.status); });
    return result->get_future();
  }
  // Pushes one row of ones.
  std::future<absl::Status> PushRow(Key key) {
    auto result = std::make_shared<std::promise<absl::Status>>();
    const std::vector<float> ones(kDim, 1);
    const RowGradients rows{&tables_[1], {&key, 1}, ones.data()};
    EXPECT_TRUE(client_->Push(1, {}, {&rows, 1}, {}, [result](const auto& r) { result->set_value(r.status); }).ok());
    return result->get_future();
  }
  // What has been pushed `times` times is there, by a pull.
  void ExpectPushed(int times) {
    std::vector<float> dense(kElements, -1), rows(keys_.size() * kDim, -1), expected(kElements);
    for (size_t i = 0; i < kElements; ++i) expected[i] = static_cast<float>(times) * gradient_[i];
    const auto versions = client_->PullNow({{&tables_[0], dense.data()}}, {{&tables_[1], keys_, rows.data()}});
    ASSERT_TRUE(versions.ok()) << versions.status();
    EXPECT_EQ(dense, expected);
    EXPECT_EQ(rows, std::vector<float>(keys_.size() * kDim, static_cast<float>(times)));
    EXPECT_EQ(*versions, ShardVersions(kShards, times));
  }
  // The sequences that came to `server`, with the shards that they were for.
  std::map<Sequence, std::set<ShardId>> SequencesAt(uint32_t server) {
    std::map<Sequence, std::set<ShardId>> sequences;
    for (const auto& push : cluster_.pushes()) {
      if (push.server != server) continue;
      for (const v1::Part& part : push.header.parts()) sequences[push.header.sequence()].insert(part.shard());
    }
    return sequences;
  }
  static Key KeyOf(ShardId shard) {
    Key key = 0;
    while (ShardOfKey(key, kShards) != shard) ++key;
    return key;
  }
  void SetFault(uint32_t at, const std::string& of, Fault fault, uint64_t calls = UINT64_MAX) {
    cluster_.SetFaults([=](uint32_t server, const std::string& method, uint64_t call) {
      return server == at && method == of && call <= calls ? fault : Fault::kNone;
    });
  }

  const std::vector<Key> keys_ = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1'000'000'007};
  std::vector<float> gradient_ = std::vector<float>(kElements);
};

// Shards 1, 5 and 9 are those of ps 1.
const std::map<ShardId, uint32_t> kThreeWays = {{1, 0}, {5, 2}, {9, 3}};

TEST_F(RerouteTest, APushWhoseShardsHaveMovedGoesToTheirOwnerWithItsSequence) {
  Connect();
  cluster_.MoveShards({{1, 2}, {5, 2}, {9, 2}});  // Nobody tells the client.
  ASSERT_TRUE(PushAll().get().ok());
  ExpectPushed(1);
  const auto former = SequencesAt(1), now = SequencesAt(2);
  ASSERT_EQ(former.size(), 1);
  EXPECT_TRUE(now.contains(former.begin()->first)) << "the same sequence";
  EXPECT_EQ(now.at(former.begin()->first), (std::set<ShardId>{1, 5, 9}));
  EXPECT_EQ(client_->shard_map()->epoch(), 2);
  EXPECT_TRUE(client_->Flush().ok());
}

TEST_F(RerouteTest, AMessageIsSplitAmongThreeOwners) {
  Connect();
  cluster_.MoveShards(kThreeWays);
  ASSERT_TRUE(PushAll().get().ok());
  ExpectPushed(1);
  const Sequence sequence = SequencesAt(1).begin()->first;
  for (const auto& [shard, owner] : kThreeWays) {
    EXPECT_EQ(SequencesAt(owner)[sequence], std::set<ShardId>{shard});
  }
  EXPECT_TRUE(client_->Flush().ok());
}

TEST_F(RerouteTest, WhatIsTurnedBackWithoutANewerMapIsSentAgainUntilItsOwnerKnowsWhatItOwns) {
  Connect();
  SetFault(1, "Push", Fault::kTurnBack, 3);
  ASSERT_TRUE(PushAll().get().ok());
  EXPECT_EQ(cluster_.calls(1, "Push"), 4);
  EXPECT_EQ(SequencesAt(1).size(), 1);
  SetFault(1, "Pull", Fault::kTurnBack, 3);
  ExpectPushed(1);
  EXPECT_GE(cluster_.calls(1, "Pull"), 4);
  EXPECT_TRUE(client_->Health().ok());
}

TEST_F(RerouteTest, GivesUpAfterItsTimeAndNamesShardsOwnersAndTheMap) {
  v1::Config config = cluster_.config();
  config.mutable_worker()->set_retry_timeout_ms(300);
  Connect(config);
  cluster_.SetFaults([](uint32_t server, const std::string& method, uint64_t) {
    return server == 1 && (method == "Push" || method == "Pull") ? Fault::kTurnBack : Fault::kNone;
  });
  const absl::Status pushed = PushAll().get();
  EXPECT_EQ(pushed.code(), absl::StatusCode::kAborted);
  for (const char* text : {"push sequence=", "ps 1 at 127.0.0.1:", "turned back by the test",
                           "epoch 1: shard 1 of ps 1", "shard 5 of ps 1", " times in 0."}) {
    EXPECT_TRUE(Contains(pushed, text)) << text << ": " << pushed;
  }
  EXPECT_EQ(client_->Flush(), pushed);
  std::vector<float> values(kElements);
  const absl::Status pulled = client_->PullNow({{&tables_[0], values.data()}}, {}).status();
  EXPECT_EQ(pulled.code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Contains(pulled, "shard 9 of ps 1 at 127.0.0.1:")) << pulled;
  EXPECT_TRUE(client_->Health().ok());
}

TEST_F(RerouteTest, APullIsSplitAmongTheOwners) {
  Connect();
  ASSERT_TRUE(PushAll().get().ok());
  cluster_.MoveShards(kThreeWays);
  ExpectPushed(1);
  EXPECT_EQ(client_->shard_map()->epoch(), 2);
}

// The header of a pull is the same at each owner, whatever fields it gets.
TEST_F(RerouteTest, APullKeepsItsHeader) {
  Connect();
  ASSERT_TRUE(PushAll().get().ok());
  cluster_.MoveShards(kThreeWays);
  ExpectPushed(1);
  std::set<std::string> headers;
  std::set<uint32_t> owners_of_moved;
  for (auto [server, header] : cluster_.pulls()) {
    for (const v1::Part& part : header.parts()) {
      if (kThreeWays.contains(part.shard())) owners_of_moved.insert(server);
    }
    header.clear_parts();
    headers.insert(header.SerializeAsString());
  }
  EXPECT_EQ(owners_of_moved, (std::set<uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(headers.size(), 1);
  EXPECT_FALSE(headers.begin()->empty());
}

TEST_F(RerouteTest, WhatIsUnderWayToAPsThatAnswersNothingGoesToTheNewOwnersWhenTheMapChanges) {
  SetFault(1, "Push", Fault::kSwallow);
  Connect();
  std::future<absl::Status> pushed = PushAll();
  cluster_.AwaitCalls(1, "Push", 1);
  cluster_.MoveShards(kThreeWays);
  HurryHeartbeat();
  ASSERT_TRUE(pushed.get().ok()) << "the attempt under way has a minute";
  ExpectPushed(1);

  cluster_.MoveShards({{1, 1}});
  ASSERT_TRUE(PushAll().valid());
  cluster_.AwaitCalls(1, "Push", 2);
  std::vector<float> values(kElements);
  std::promise<absl::Status> pulled;
  SetFault(1, "Pull", Fault::kSwallow);
  client_->Pull({{&tables_[0], values.data()}}, {},
                [&](const absl::Status& status, auto) { pulled.set_value(status); });
  cluster_.AwaitCalls(1, "Pull", 1);
  cluster_.MoveShards({{1, 3}});
  HurryHeartbeat();
  EXPECT_TRUE(pulled.get_future().get().ok());
  EXPECT_TRUE(client_->Flush().ok());
  ExpectPushed(2);
}

TEST_F(RerouteTest, WhatIsInAPauseGoesToTheNewOwnersWhenTheMapChanges) {
  SetFault(1, "Push", Fault::kRefuse);
  Connect();
  std::future<absl::Status> pushed = PushAll();
  cluster_.AwaitCalls(1, "Push", 3);
  cluster_.MoveShards(kThreeWays);
  ASSERT_TRUE(pushed.get().ok());  // Its failures let the map be asked for.
  ExpectPushed(1);
}

TEST_F(RerouteTest, CallsWhoseShardsStayAreNotSentAgain) {
  SetFault(1, "Push", Fault::kHold);
  Connect();
  std::future<absl::Status> moves = PushRow(KeyOf(5)), stays = PushRow(KeyOf(9));
  cluster_.AwaitCalls(1, "Push", 2);
  cluster_.MoveShards({{5, 0}});
  HurryHeartbeat();
  EXPECT_TRUE(moves.get().ok());
  EXPECT_EQ(cluster_.calls(1, "Push"), 2);
  cluster_.ReleaseHeld();
  EXPECT_TRUE(stays.get().ok());
  EXPECT_EQ(cluster_.calls(1, "Push"), 2);
}

TEST_F(RerouteTest, WhatTheFormerOwnerHadAppliedAndAnswersLateCountsOnce) {
  SetFault(1, "Push", Fault::kHold);
  Connect();
  std::future<absl::Status> pushed = PushAll();
  cluster_.AwaitCalls(1, "Push", 1);
  cluster_.MoveShards({{5, 2}});  // Two of the three stay: ps 1 gets them again.
  HurryHeartbeat();
  cluster_.AwaitCalls(1, "Push", 2);
  cluster_.SetFaults(nullptr);
  cluster_.ReleaseHeld();
  EXPECT_TRUE(pushed.get().ok());
  ExpectPushed(1);
  EXPECT_TRUE(client_->Health().ok());
  EXPECT_EQ(SequencesAt(1).size(), 1);
}

TEST_F(RerouteTest, EndsWhatWasTurnedBackWhenItCloses) {
  SetFault(1, "Push", Fault::kTurnBack);
  Connect();
  std::future<absl::Status> pushed = PushAll();
  cluster_.AwaitCalls(1, "Push", 2);
  client_.reset();
  EXPECT_TRUE(absl::IsCancelled(pushed.get()));
}

TEST_F(RerouteTest, PushesFromManyThreadsWhileShardsWanderCountOnce) {
  constexpr int kThreads = 4, kPushes = 10;
  Connect();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kPushes; ++i) Push(keys_, nullptr);
    });
  }
  for (uint32_t move = 0; move < 40; ++move) {
    cluster_.MoveShards({{move % kShards, move % kServers}, {(move * 5) % kShards, (move + 1) % kServers}});
    if (move % 4 == 0) HurryHeartbeat();
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  const absl::Status flushed = client_->Flush();
  ASSERT_TRUE(flushed.ok()) << flushed;
  ExpectPushed(kThreads * kPushes);
}

TEST_F(RerouteTest, AWorkerStartsWhileAPsThatOwnsNothingIsAwayAndTellsItOfItsTablesLater) {
  cluster_.MoveShards(kThreeWays);
  cluster_.SetAway(1, true);
  cluster_.Restart(1, [this] {
    Connect();
    ASSERT_TRUE(client_->Subscribe({&tables_[0]}, {}).ok());
    EXPECT_TRUE(PushAll().get().ok());
    ExpectPushed(1);
  });
  EXPECT_EQ(cluster_.calls(1, "EnsureTables"), 0);
  cluster_.SetAway(1, false);
  cluster_.MoveShards({{1, 1}, {5, 1}});
  EXPECT_TRUE(PushAll().get().ok());
  ExpectPushed(2);
  EXPECT_EQ(cluster_.calls(1, "EnsureTables"), 1);
  cluster_.AwaitCalls(1, "Subscribe", 1);
  EXPECT_TRUE(client_->Health().ok()) << client_->Health();
  client_.reset();
}

// A subscriber's copy of the dense table.
class Copy {
 public:
  void Subscribe(Client* client, const TableHandle* table) {
    {
      MutexLock lock(&mu_);
      values_.assign(kElements, -1);
    }
    const absl::StatusOr<SubscriptionId> subscribed = client->Subscribe(
        {table}, {.on_block =
                      [this, table](const BlockUpdate& update) {
                        MutexLock lock(&mu_);
                        update.values.CopyTo(&values_[uint64_t{update.block} * table->layout.block_elements]);
                      },
                  .on_shard =
                      [this](ShardId shard, Version version) {
                        MutexLock lock(&mu_);
                        versions_[shard] = version;
                        changed_.NotifyAll();
                      }});
    ASSERT_TRUE(subscribed.ok()) << subscribed.status();
  }
  // Waits until all shards are at `version`.
  void Await(Version version) {
    MutexLock lock(&mu_);
    const auto there = [&](const auto& shard) { return shard.second == version; };
    while (versions_.size() < kShards || !std::all_of(versions_.begin(), versions_.end(), there)) changed_.Wait(&mu_);
  }
  std::vector<float> values() {
    MutexLock lock(&mu_);
    return values_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<float> values_ ABSL_GUARDED_BY(mu_);
  std::map<ShardId, Version> versions_ ABSL_GUARDED_BY(mu_);
};

TEST_F(RerouteTest, ASubscriptionGoesOnFromWhatIsHeldAtTheNewOwner) {
  Connect();
  Copy copy;
  copy.Subscribe(client_.get(), &tables_[0]);
  copy.Await(0);
  ASSERT_TRUE(PushAll().get().ok());
  for (uint32_t server = 0; server < kServers; ++server) cluster_.Broadcast(server);
  copy.Await(1);
  EXPECT_EQ(cluster_.anchors(), kShards);

  cluster_.MoveShards({{1, 2}, {5, 2}, {9, 2}});
  cluster_.EndStreams(2);  // As a ps does whose shards have changed.
  cluster_.AwaitCalls(2, "Subscribe", 2);
  ASSERT_TRUE(PushAll().get().ok());
  for (uint32_t server = 0; server < kServers; ++server) cluster_.Broadcast(server);
  copy.Await(2);
  EXPECT_EQ(copy.values()[999], 2 * gradient_[999]);
  ASSERT_EQ(cluster_.subscribed(2).held_size(), kShards);
  const v1::SubscribeRequest second = cluster_.subscribed(2);
  for (const auto& held : second.held()) {
    EXPECT_EQ(held.term(), 0);
    EXPECT_EQ(held.version(), 1);
  }
  EXPECT_EQ(cluster_.anchors(), kShards) << "no other than the first ones";

  cluster_.EndStreams(2);
  cluster_.AwaitCalls(2, "Subscribe", 3);
  uint64_t of_term_2 = 0;
  const v1::SubscribeRequest third = cluster_.subscribed(2);
  for (const auto& held : third.held()) of_term_2 += held.term() == 2;
  EXPECT_EQ(of_term_2, 3);
  client_.reset();  // Before what it writes to.
}

TEST_F(RerouteTest, ASubscriptionTakesAnAnchorWhereThePsCannotGoOn) {
  Connect();
  Copy copy;
  copy.Subscribe(client_.get(), &tables_[0]);
  copy.Await(0);
  ASSERT_TRUE(PushAll().get().ok());
  cluster_.ForgetHistory();
  for (uint32_t server = 0; server < kServers; ++server) cluster_.EndStreams(server);
  copy.Await(1);
  EXPECT_EQ(cluster_.anchors(), 2 * kShards);
  client_.reset();
}

// The payload of a split push lies where it lay.
TEST(SplitPush, DividesAPushByOwnersWithoutACopy) {
  v1::RouteResponse route;
  route.set_epoch(7);
  for (int server = 0; server < 3; ++server) route.add_servers()->set_address("x:1");
  for (const uint32_t owner : {0, 2, 1, 2}) route.add_owners(owner);
  const ShardMap map = *ShardMap::FromProto(route);

  std::vector<uint8_t> bytes(1000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 7);
  ServerChannel::Request request{.what = "push", .epoch = 3, .started_ms = 5, .turned_back = 2};
  for (const auto& [from, to] : {std::pair{0, 250}, {250, 600}, {600, 1000}}) {
    request.payload.values.emplace_back(bytes.data() + from, to - from, grpc::Slice::STATIC_SLICE);
  }
  v1::PushRequest& push = *request.call.mutable_push();
  push.set_worker_incarnation(11);
  push.set_sequence(12);
  push.set_clock(13);
  for (const uint64_t value_bytes : {100, 300, 0, 350, 250}) request.payload.parts.push_back({0, value_bytes});
  for (const uint32_t shard : {1, 1, 0, 2, 3}) push.add_parts()->set_shard(shard);
  // Parts 1 and 4 have keys.
  const std::vector<Key> keys = {10, 11, 12, 13, 14};
  request.payload.parts[1].key_bytes = 3 * sizeof(Key);
  request.payload.parts[4].key_bytes = 2 * sizeof(Key);
  request.payload.keys = grpc::Slice(keys.data(), keys.size() * sizeof(Key));

  const std::vector<PushSplit> splits = SplitPush(map, request);
  ASSERT_EQ(splits.size(), 3);
  const std::map<uint32_t, std::pair<std::vector<uint32_t>, std::vector<std::pair<size_t, size_t>>>> expected = {
      {2, {{1, 1, 3}, {{0, 100}, {100, 250}, {250, 400}, {750, 1000}}}},
      {0, {{0}, {}}},
      {1, {{2}, {{400, 600}, {600, 750}}}}};
  for (const PushSplit& split : splits) {
    const auto& [shards, ranges] = expected.at(split.server);
    const v1::PushRequest& sent = split.request.call.push();
    EXPECT_EQ(sent.worker_incarnation(), 11);
    EXPECT_EQ(sent.sequence(), 12);
    EXPECT_EQ(sent.clock(), 13);
    EXPECT_EQ(split.request.epoch, 7);
    EXPECT_EQ(split.request.started_ms, 5);
    EXPECT_EQ(split.request.turned_back, 2);
    ASSERT_EQ(sent.parts_size(), shards.size());
    EXPECT_EQ(split.request.payload.parts.size(), shards.size());
    EXPECT_EQ(split.request.payload.keys.size(), split.server == 2 ? keys.size() * sizeof(Key) : 0);
    if (split.server == 2) {
      EXPECT_EQ(std::memcmp(split.request.payload.keys.begin(), keys.data(), keys.size() * sizeof(Key)), 0);
    }
    for (size_t i = 0; i < shards.size(); ++i) EXPECT_EQ(sent.parts(static_cast<int>(i)).shard(), shards[i]);
    ASSERT_EQ(split.request.payload.values.size(), ranges.size());
    for (size_t i = 0; i < ranges.size(); ++i) {
      EXPECT_EQ(split.request.payload.values[i].begin(), bytes.data() + ranges[i].first);
      EXPECT_EQ(split.request.payload.values[i].size(), ranges[i].second - ranges[i].first);
    }
  }
}

TEST(SplitPush, DividesAPartOfSeveralShards) {
  v1::RouteResponse route;
  for (int server = 0; server < 2; ++server) route.add_servers()->set_address("x:1");
  for (const uint32_t owner : {0, 1, 0, 1}) route.add_owners(owner);
  const ShardMap map = *ShardMap::FromProto(route);
  ServerChannel::Request request{.what = "push"};
  v1::Part& part = *request.call.mutable_push()->add_parts();
  part.set_table(9);
  part.set_more(v1::Part::FOR_PS);
  const std::vector<uint32_t> rows = {2, 1, 1, 0};
  for (uint32_t shard = 0; shard < rows.size(); ++shard) {
    part.add_shards(shard);
    part.add_row_counts(rows[shard]);
  }
  const std::vector<Key> keys = {10, 11, 12, 13};
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7, 8};
  request.payload.keys = grpc::Slice(keys.data(), keys.size() * sizeof(Key));
  request.payload.values.emplace_back(values.data(), values.size() * sizeof(float), grpc::Slice::STATIC_SLICE);
  request.payload.parts.push_back({keys.size() * sizeof(Key), values.size() * sizeof(float)});

  struct Expected {
    std::vector<uint32_t> shards;
    std::vector<Key> keys;
    std::vector<float> values;
  };
  const Expected expected[] = {{{0, 2}, {10, 11, 13}, {1, 2, 3, 4, 7, 8}}, {{1, 3}, {12}, {5, 6}}};
  const std::vector<PushSplit> splits = SplitPush(map, request);
  ASSERT_EQ(splits.size(), 2);
  for (uint32_t server = 0; server < 2; ++server) {
    ASSERT_EQ(splits[server].server, server);
    const v1::PushRequest& push = splits[server].request.call.push();
    const CallPayload& payload = splits[server].request.payload;
    ASSERT_EQ(push.parts_size(), expected[server].shards.size());
    ASSERT_EQ(payload.parts.size(), expected[server].shards.size());
    for (int i = 0; i < push.parts_size(); ++i) {
      const uint32_t shard = expected[server].shards[i];
      EXPECT_EQ(push.parts(i).shard(), shard);
      EXPECT_EQ(push.parts(i).row_count(), rows[shard]);
      EXPECT_EQ(push.parts(i).table(), 9);
      EXPECT_EQ(push.parts(i).more(), v1::Part::FOR_PS);
      EXPECT_EQ(push.parts(i).shards_size(), 0);
      EXPECT_EQ(payload.parts[i].key_bytes, rows[shard] * sizeof(Key));
      EXPECT_EQ(payload.parts[i].value_bytes, rows[shard] * 2 * sizeof(float));
    }
    std::vector<Key> sent_keys(payload.keys.size() / sizeof(Key));
    std::memcpy(sent_keys.data(), payload.keys.begin(), payload.keys.size());
    EXPECT_EQ(sent_keys, expected[server].keys);
    std::string sent;
    for (const grpc::Slice& slice : payload.values) {
      sent.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    std::vector<float> sent_values(sent.size() / sizeof(float));
    std::memcpy(sent_values.data(), sent.data(), sent.size());
    EXPECT_EQ(sent_values, expected[server].values);
  }
}

// Sets every singular scalar field of `message`, each to another value.
void SetAllScalars(google::protobuf::Message* message) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection* const reflection = message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = message->GetDescriptor()->field(i);
    if (field->is_repeated()) continue;
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        reflection->SetInt32(message, field, 100 + i);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        reflection->SetInt64(message, field, 100 + i);
        break;
      case FieldDescriptor::CPPTYPE_UINT32:
        reflection->SetUInt32(message, field, 100 + i);
        break;
      case FieldDescriptor::CPPTYPE_UINT64:
        reflection->SetUInt64(message, field, 100 + i);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        reflection->SetDouble(message, field, 100 + i);
        break;
      case FieldDescriptor::CPPTYPE_FLOAT:
        reflection->SetFloat(message, field, 100 + i);
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection->SetBool(message, field, true);
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        reflection->SetEnumValue(message, field, field->enum_type()->value(1)->number());
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        reflection->SetString(message, field, std::string(1, static_cast<char>('a' + i)));
        break;
      case FieldDescriptor::CPPTYPE_MESSAGE:
        SetAllScalars(reflection->MutableMessage(message, field));
        break;
    }
  }
}

// Of three servers, with these owners of its shards.
ShardMap MapOf(const std::vector<uint32_t>& owners) {
  v1::RouteResponse route;
  for (int server = 0; server < 3; ++server) route.add_servers()->set_address("x:1");
  route.mutable_owners()->Add(owners.begin(), owners.end());
  return *ShardMap::FromProto(route);
}

TEST(SplitPush, TheVersionsThatValuesWereReadAtGoWithTheirShards) {
  const ShardMap map = MapOf({0, 1, 0});
  ServerChannel::Request request{.what = "push"};
  v1::Part& part = *request.call.mutable_push()->add_parts();
  for (const uint32_t shard : {0, 1, 2}) {
    part.add_shards(shard);
    part.add_row_counts(0);
    part.add_read_versions(100 + shard);
  }
  request.payload.parts.resize(1);

  std::map<ShardId, Version> read;
  for (const PushSplit& split : SplitPush(map, request)) {
    for (const v1::Part& of : split.request.call.push().parts()) {
      ASSERT_EQ(of.read_versions_size(), 1);
      EXPECT_EQ(map.OwnerOf(of.shard()), split.server);
      read[of.shard()] = of.read_versions(0);
    }
  }
  EXPECT_EQ(read, (std::map<ShardId, Version>{{0, 100}, {1, 101}, {2, 102}}));
}

TEST(SplitPush, KeepsEveryFieldOfTheHeader) {
  const ShardMap map = MapOf({0, 2, 1});
  ServerChannel::Request request{.what = "push"};
  v1::PushRequest& push = *request.call.mutable_push();
  SetAllScalars(&push);
  const std::string header = push.SerializeAsString();
  for (const uint32_t shard : {0, 1, 2}) push.add_parts()->set_shard(shard);
  request.payload.parts.resize(3);
  ServerChannel::Request with_pull = request;
  *with_pull.call.mutable_push_pull()->mutable_push() = request.call.push();
  with_pull.call.mutable_push_pull()->mutable_pull()->add_parts();
  with_pull.payload.parts.resize(4);

  std::vector<PushSplit> splits = SplitPush(map, request);
  for (PushSplit& split : SplitPush(map, with_pull)) splits.push_back(std::move(split));
  ASSERT_EQ(splits.size(), 6);
  for (const PushSplit& split : splits) {
    ASSERT_TRUE(split.request.call.has_push());
    v1::PushRequest sent = split.request.call.push();
    EXPECT_EQ(sent.parts_size(), 1);
    sent.clear_parts();
    EXPECT_EQ(sent.SerializeAsString(), header) << sent.ShortDebugString();
  }
}

}  // namespace
}  // namespace lodestone::worker
