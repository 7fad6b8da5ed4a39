#include "tools/bench/load/broadcast_load.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "tools/bench/harness/outstanding.h"
#include "tools/bench/harness/progress_meter.h"
#include "worker/client/client.h"

namespace lodestone::bench {
namespace {

v1::TableSpec SpecOf(uint64_t bytes) {
  v1::TableSpec spec;
  spec.set_name("broadcast");
  spec.mutable_dense()->add_dims(bytes / sizeof(float));
  spec.mutable_optimizer()->mutable_sgd();
  spec.mutable_broadcast()->set_every_ms(0);
  spec.mutable_broadcast()->set_every_pushes(1);
  return spec;
}

class ClientSubscriber final : public Load {
 public:
  ClientSubscriber(uint64_t bytes, bool pusher)
      : pusher_(pusher), gradient_(pusher ? bytes / sizeof(float) : 0, 1e-3f), values_(bytes / sizeof(float)) {}
  ~ClientSubscriber() override { client_.reset(); }

  absl::Status Start(const v1::Config& config) {
    InitLog(config.log(), "bench", "");
    LODESTONE_ASSIGN_OR_RETURN(client_, worker::Client::Connect(config));
    LODESTONE_ASSIGN_OR_RETURN(tables_, client_->EnsureTables({SpecOf(values_.size() * sizeof(float))}));
    {
      MutexLock lock(&mu_);
      shards_ = client_->shard_map()->shards();
      held_.assign(std::min<size_t>(shards_, tables_[0].layout.block_count()), -1);
      first_shard_ = ShardOfBlock(tables_[0].id, 0, shards_);
    }
    const auto subscribed = client_->Subscribe(
        {&tables_[0]}, {.on_block = [this](const worker::BlockUpdate& update) { OnBlock(update); },
                        .on_shard = [this](ShardId shard, Version version) { OnShard(shard, version); }});
    LODESTONE_RETURN_IF_ERROR(subscribed.status());
    return meter_.Await(0);
  }

  absl::StatusOr<Outcome> Run(const Order& order) override {
    if (!pusher_) return meter_.RunSubscriber(order);
    return meter_.RunPusher(order, [this](uint64_t number) {
      const worker::DenseGradient gradient{&tables_[0], gradient_.data(), /*borrowed=*/true};
      return client_->Push(number, {&gradient, 1}, {}, {}, nullptr);
    });
  }

 private:
  void OnBlock(const worker::BlockUpdate& update) {
    update.values.CopyTo(values_.data() + uint64_t{update.block} * tables_[0].layout.block_elements);
    meter_.AddBytes(update.count * sizeof(float));
  }

  // Every push adds one to the version of every shard that holds a block.
  void OnShard(ShardId shard, Version version) {
    int64_t reached;
    {
      MutexLock lock(&mu_);
      const size_t index = (shard + shards_ - first_shard_) % shards_;
      if (index >= held_.size()) return;  // Holds nothing.
      held_[index] = static_cast<int64_t>(version);
      reached = *std::min_element(held_.begin(), held_.end());
    }
    if (reached >= 0) meter_.Reach(static_cast<uint64_t>(reached));
  }

  const bool pusher_;
  const std::vector<float> gradient_;
  std::vector<float> values_;
  ProgressMeter meter_;
  std::vector<worker::TableHandle> tables_;

  Mutex mu_;
  uint32_t shards_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t first_shard_ ABSL_GUARDED_BY(mu_) = 0;   // Of block 0; the other blocks' follow.
  std::vector<int64_t> held_ ABSL_GUARDED_BY(mu_);  // Version by shard from that one on; -1: none yet.
  std::unique_ptr<worker::Client> client_;          // Ends before what its callbacks use.
};

class PlainPusher final : public Load {
 public:
  explicit PlainPusher(uint64_t bytes) : gradient_(bytes / sizeof(float), 1e-3f) {}
  ~PlainPusher() override { client_.reset(); }

  absl::Status Start(const v1::Config& config) {
    InitLog(config.log(), "bench", "");
    LODESTONE_ASSIGN_OR_RETURN(client_, worker::Client::Connect(config));
    LODESTONE_ASSIGN_OR_RETURN(tables_, client_->EnsureTables({SpecOf(gradient_.size() * sizeof(float))}));
    return absl::OkStatus();
  }

  absl::StatusOr<Outcome> Run(const Order& order) override {
    return RunOutstanding(order, 1, [this](uint64_t, uint32_t, Done done) {
      const worker::DenseGradient gradient{&tables_[0], gradient_.data(), /*borrowed=*/true};
      const absl::Status status = client_->Push(
          ++clock_, {&gradient, 1}, {}, {}, [done](const worker::Client::PushResult& result) { done(result.status); });
      if (!status.ok()) done(status);  // It was not even sent.
    });
  }

 private:
  const std::vector<float> gradient_;
  std::vector<worker::TableHandle> tables_;
  Clock clock_ = 0;
  std::unique_ptr<worker::Client> client_;  // Ends before the tables and the gradient.
};

}  // namespace

Peer::MakeLoad BroadcastLoad(const v1::Config& config, uint64_t bytes, bool pusher) {
  return [config, bytes, pusher]() -> absl::StatusOr<std::unique_ptr<Load>> {
    auto load = std::make_unique<ClientSubscriber>(bytes, pusher);
    LODESTONE_RETURN_IF_ERROR(load->Start(config));
    return std::unique_ptr<Load>(std::move(load));
  };
}

Peer::MakeLoad PlainPushLoad(const v1::Config& config, uint64_t bytes) {
  return [config, bytes]() -> absl::StatusOr<std::unique_ptr<Load>> {
    auto load = std::make_unique<PlainPusher>(bytes);
    LODESTONE_RETURN_IF_ERROR(load->Start(config));
    return std::unique_ptr<Load>(std::move(load));
  };
}

}  // namespace lodestone::bench
