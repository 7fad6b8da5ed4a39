// Several ps in one process, each a store with its part in replication, over real connections; and shorthand to push to
// them, hold them up and compare them.
#pragma once

#include <atomic>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "server/durability/storage.h"
#include "server/replication/replication.h"
#include "server/shard/content_checksum.h"
#include "tests/server/replication/fake_coordinator.h"
#include "tests/server/store/held_table.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {

// What a ps has of a shard.
struct Held {
  Version version = 0;
  uint64_t checksum = 0;
};

// One ps. What it owns, it owns from Begin on.
class Node {
 public:
  static constexpr uint32_t kMessageBytesMax = 64 << 20;

  // Keeps what it holds in `data_dir`, unless that is empty.
  Node(FakeCoordinator* coordinator, uint32_t index, uint32_t shards, uint32_t lease_ms,
       const std::string& data_dir = "", v1::ClusterConfig::Durability durability = v1::ClusterConfig::AUTO,
       FileCalls calls = FileCalls::System())
      : coordinator_(coordinator), index_(index), incarnation_(100 * (index + 1)) {
    Store::Options options;
    options.shards = shards;
    options.executors = 2;
    options.time = &holding_time;
    store = std::make_unique<Store>(options);
    config.mutable_cluster()->set_servers(2);
    config.mutable_cluster()->set_replicas(2);
    config.mutable_cluster()->set_durability(durability);
    config.mutable_server()->set_data_dir(data_dir);
    config.mutable_checkpoint()->set_every_ms(0);
    config.mutable_checkpoint()->set_at_exit(false);
    config.mutable_cluster()->set_shards(shards);
    config.mutable_server()->set_index(index);
    config.mutable_server()->set_message_max_bytes(kMessageBytesMax);
    config.mutable_coordinator()->set_lease_ms(lease_ms);
    Replication::Dependencies dependencies;
    dependencies.report = [this](const v1::ReportSyncRequest& request) {
      return coordinator_->Report(index_, request);
    };
    dependencies.ask_route = [this] { ++routes_asked; };
    dependencies.incarnation = [this] { return incarnation_.load(); };
    dependencies.lease_ends_ms = [this] { return SteadyTime().NowMs() + (lease_over ? -1 : 3600'000); };
    dependencies.on_owners_changed = [this] { ++owners_changed; };
    dependencies.on_state = [this](ShardId) { ++states_taken; };
    if (!data_dir.empty()) {
      auto opened = Storage::Open(config, &time, nullptr, std::move(calls));
      EXPECT_TRUE(opened.ok()) << opened.status();
      if (opened.ok()) storage = *std::move(opened);
    }
    dependencies.note_shared = [this]() -> absl::Status {
      ++notes_asked;
      return full ? absl::ResourceExhaustedError("no space left on device") : absl::OkStatus();
    };
    dependencies.updates = [this] { return storage == nullptr ? nullptr : storage->updates(); };
    replication = std::make_unique<Replication>(config, std::move(dependencies), store.get());
    if (storage != nullptr) {
      storage->checkpointer().KeepMarks(
          [this](ShardId shard, Version version) { return replication->MarkAt(shard, version); });
    }
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    ApplyServerSettings(&builder, kMessageBytesMax);
    builder.RegisterService(replication->service());
    server_ = builder.BuildAndStart();
    address = absl::StrCat("127.0.0.1:", port);
    coordinator_->SetServer(index, address, incarnation_);
  }
  ~Node() {
    replication->Shutdown();
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    storage.reset();
    replication.reset();
  }

  // Owns what the map says, and serves it.
  void Begin() {
    const ShardMap map = coordinator_->map();
    replication->Prepare(map);
    if (storage != nullptr) {
      const absl::Status recovered =
          storage->Recover(store.get(), map.ShardsOf(index_), replication->CopiesToBringBack(map, /*has_log=*/true));
      ASSERT_TRUE(recovered.ok()) << recovered;
    } else {
      store->OwnShards(map.ShardsOf(index_));
    }
    replication->Begin();
  }
  void SetIncarnation(Incarnation incarnation) {
    incarnation_ = incarnation;
    coordinator_->SetServer(index_, address, incarnation);
  }
  Incarnation incarnation() const { return incarnation_; }
  Held held(ShardId shard) {
    Held read;
    store->shards().Run(shard, [&](Shard* held) {
      read = {.version = held->version(), .checksum = ContentChecksum(held->CollectState(nullptr))};
    });
    return read;
  }
  uint64_t checksum(ShardId shard) { return held(shard).checksum; }
  uint64_t term(ShardId shard) {
    uint64_t term = 0;
    store->shards().Run(shard, [&](Shard* held) { term = held->term(); });
    return term;
  }

  ManualTime time;
  HoldingTime holding_time{&time};  // Of the store.
  v1::Config config;
  std::unique_ptr<Store> store;
  std::unique_ptr<Storage> storage;  // Null: nothing is kept.
  std::unique_ptr<Replication> replication;
  std::string address;
  std::atomic<bool> lease_over{false};
  std::atomic<int> routes_asked{0};
  std::atomic<int> owners_changed{0};
  std::atomic<int> states_taken{0};
  std::atomic<bool> full{false};  // Its disk: it cannot note that its folder holds copies.
  std::atomic<int> notes_asked{0};

 private:
  FakeCoordinator* const coordinator_;
  const uint32_t index_;
  std::atomic<Incarnation> incarnation_;
  std::unique_ptr<grpc::Server> server_;
};

// Nothing moves on the executor of a shard while this lives.
class Hold {
 public:
  Hold(Store* store, ShardId shard)
      : thread_([this, store, shard] {
          store->shards().Run(shard, [this](Shard*) {
            began_.count_down();
            release_.wait();
          });
        }) {
    began_.wait();
  }
  ~Hold() {
    release_.count_down();
    thread_.join();
  }

 private:
  std::latch began_{1};
  std::latch release_{1};
  std::thread thread_;
};

class ReplicaFixture : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr uint32_t kShards = 4;
  static constexpr uint64_t kElements = 64;
  static constexpr uint32_t kBlockElements = 4;
  static constexpr uint32_t kDim = 2;
  static constexpr uint32_t kLong = 3600'000;
  using Pushed = absl::StatusOr<v1::PushResponse>;

  ~ReplicaFixture() override {
    coordinator_.Hold(false);
    for (const auto& node : nodes_) {
      if (node != nullptr) node->replication->Shutdown();
    }
  }

  // Two ps; the first one owns all shards and has two tables. A follower may be silent for a quarter of `lease_ms`.
  void Start(uint32_t lease_ms = kLong) {
    for (uint32_t i = 0; i < 2; ++i) {
      nodes_.push_back(
          std::make_unique<Node>(&coordinator_, i, kShards, lease_ms, DataDir(i), durability(), CallsOf(i)));
    }
    a().Begin();
    Ensure(&a(), {AddingDense("dense", kElements, kBlockElements), AddingRows("rows", kDim)});
  }
  // The same, and the other one follows and is in sync.
  void StartInSync(uint32_t lease_ms = kLong) {
    Start(lease_ms);
    ASSERT_NO_FATAL_FAILURE(PushMany(1, 3));
    b().Begin();
    ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync() && InSyncShards(a()) == kShards; }));
  }
  // Where a ps keeps what it holds; empty: nowhere.
  virtual std::string DataDir(uint32_t /*index*/) const { return ""; }
  virtual v1::ClusterConfig::Durability durability() const { return v1::ClusterConfig::AUTO; }
  // How it writes its logs there.
  virtual FileCalls CallsOf(uint32_t /*index*/) { return FileCalls::System(); }
  Node& a() { return *nodes_[0]; }
  Node& b() { return *nodes_[1]; }

  static void Ensure(Node* node, const std::vector<v1::TableSpec>& specs, Incarnation worker = kWorker) {
    v1::EnsureTablesRequest request;
    request.set_worker_incarnation(worker);
    for (const v1::TableSpec& spec : specs) *request.add_tables() = spec;
    const auto response = node->store->EnsureTables(request);
    ASSERT_TRUE(response.ok()) << response.status();
  }
  // Pushes `value` to all of the dense table and to some rows.
  static std::future<Pushed> PushTo(Node* node, Sequence sequence, float value, Incarnation worker = kWorker) {
    RequestBuilder<v1::PushRequest> push(kShards);
    push.header.set_worker_incarnation(worker);
    push.header.set_sequence(sequence);
    push.AddDense(TableIdOf("dense"), {kElements, kBlockElements}, value);
    std::vector<std::pair<Key, float>> rows;
    for (Key key = 0; key < 20; ++key) rows.emplace_back(key * (sequence % 5 + 1), value);
    push.AddRows(TableIdOf("rows"), kDim, rows, true);
    return Send(node, push);
  }
  static std::future<Pushed> Send(Node* node, const RequestBuilder<v1::PushRequest>& push) {
    auto promise = std::make_shared<std::promise<Pushed>>();
    std::future<Pushed> future = promise->get_future();
    node->store->pushes().Push(push.header, push.payload(),
                               [promise](Pushed result) { promise->set_value(std::move(result)); });
    return future;
  }
  // Pushes to the first ps that are all acknowledged.
  void PushMany(Sequence first, Sequence last) {
    for (Sequence s = first; s <= last; ++s) {
      const Pushed pushed = PushTo(&a(), s, static_cast<float>(s)).get();
      ASSERT_TRUE(pushed.ok()) << pushed.status();
      ASSERT_FALSE(pushed->shards(0).duplicate());
    }
  }
  static bool Waits(const std::future<Pushed>& push) {
    return push.wait_for(std::chrono::seconds(0)) == std::future_status::timeout;
  }
  // Waits until a shard of the ps is at this version.
  void AwaitVersion(Node* node, ShardId shard, Version version) {
    ASSERT_TRUE(coordinator_.Await([&] {
      return node->store->shards().RoleOf(shard) >= ShardRole::kFollows &&
             node->store->shards().VersionOf(shard) == version;
    })) << "shard "
        << shard << " is at version " << node->store->shards().VersionOf(shard) << ", not " << version;
  }
  // Waits until the two hold the same updates, and compares what they made of them. A sweep of the owner may still go
  // on, and count its updates: what is compared is of one version.
  void ExpectSame(Node* owner, Node* follower) {
    for (ShardId shard = 0; shard < kShards; ++shard) {
      Held owners, followers;
      ASSERT_TRUE(coordinator_.Await([&] {
        if (follower->store->shards().RoleOf(shard) < ShardRole::kFollows) return false;
        owners = owner->held(shard);
        followers = follower->held(shard);
        return followers.version == owners.version;
      })) << "shard "
          << shard << " is at version " << followers.version << ", not " << owners.version;
      EXPECT_EQ(followers.checksum, owners.checksum) << "shard " << shard << " at version " << owners.version;
    }
  }
  static uint32_t InSyncShards(const Node& owner) { return StatusOf(owner).replication().shards_in_sync(); }
  static v1::StatusResponse StatusOf(const Node& node) {
    v1::StatusResponse status;
    node.replication->FillStatus(&status);
    return status;
  }
  // The first element of a row.
  static float Row(Node* node, Key key) {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddRows(TableIdOf("rows"), kDim, {{key, 0.0f}}, false);
    std::promise<float> value;
    node->store->pulls().Pull(pull.header, pull.payload(), [&](absl::StatusOr<PullPath::Values> values) {
      EXPECT_TRUE(values.ok()) << values.status();
      float first = -1e30f;
      if (values.ok()) std::memcpy(&first, values->payload[0].begin(), sizeof(first));
      value.set_value(first);
    });
    return value.get_future().get();
  }

  FakeCoordinator coordinator_{kShards, 2};
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace lodestone::server
