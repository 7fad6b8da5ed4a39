#include "server/rpc/broadcaster.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/limits.h"
#include "common/base/status.h"
#include "server/rpc/shared_snapshots.h"
#include "server/rpc/subscriber.h"
#include "server/rpc/subscriber_set.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

// The shortest every_ms of the tables that have one; 0 if none has.
std::chrono::milliseconds PeriodOf(const Store& store, const DeltaPath::Subscription& subscription) {
  uint32_t shortest = 0;
  for (const DeltaPath::Subscription::Table& table : subscription.tables) {
    const std::optional<v1::Broadcast> broadcast = store.tables().BroadcastOf(table.id);
    const uint32_t every_ms = broadcast.has_value() ? broadcast->every_ms() : 0;
    if (every_ms > 0 && (shortest == 0 || every_ms < shortest)) shortest = every_ms;
  }
  return std::chrono::milliseconds(shortest);
}

}  // namespace

Broadcaster::Broadcaster(Store* store, uint32_t subscribers_max)
    : store_(store),
      bytes_total_(std::make_shared<BroadcastBytes>(0)),
      snapshots_(std::make_shared<SharedSnapshots>(&store->deltas())),
      subscribers_(std::make_shared<SubscriberSet>(subscribers_max)) {
  // An executor may run the listener until the store is destroyed, later than this.
  store->pushes().SetBroadcastListener(
      [subscribers = subscribers_](std::span<const TableId> tables) { subscribers->ServeTables(tables); });
  thread_ = std::thread([subscribers = subscribers_] { subscribers->RunThread(); });
}

Broadcaster::~Broadcaster() {
  Shutdown();
  thread_.join();
}

absl::StatusOr<std::shared_ptr<Subscriber>> Broadcaster::Add(const v1::SubscribeRequest& request, std::string peer,
                                                             DeltaSink* sink) {
  const uint64_t generation = subscribers_->generation();
  if (request.tables().empty()) return absl::InvalidArgumentError("the subscription names no table; name at least one");
  LODESTONE_ASSIGN_OR_RETURN(DeltaPath::Subscription subscription, store_->deltas().MakeSubscription(request));
  // May be none yet: the stream ends when that changes.
  std::vector<ShardId> shards = store_->deltas().ShardsOf(subscription);
  const bool dense = store_->deltas().IsDense(subscription);
  const uint64_t revision = store_->tables().settings_revision();  // What is set meanwhile, Tick brings.
  const SubscriberSet::Period period{revision, PeriodOf(*store_, subscription)};
  std::vector<std::optional<DeltaPath::Held>> held(shards.size());
  for (const auto& holds : request.held()) {
    const auto shard = std::lower_bound(shards.begin(), shards.end(), holds.shard());
    if (shard == shards.end() || *shard != holds.shard()) continue;
    held[shard - shards.begin()] = DeltaPath::Held{holds.term(), holds.version()};
  }
  auto subscriber = std::make_shared<Subscriber>(
      Subscriber::Options{request.worker_incarnation(), std::move(peer), std::move(subscription), dense,
                          std::move(shards), std::move(held)},
      store_, sink, subscribers_->queue(), snapshots_, bytes_total_);
  LODESTONE_RETURN_IF_ERROR(subscribers_->Add(subscriber, period, generation));
  return subscriber;
}

void Broadcaster::EndAll() { subscribers_->CancelAll(); }

void Broadcaster::Shutdown() { subscribers_->Close(); }

void Broadcaster::Tick() {
  subscribers_->SetPeriods(store_->tables().settings_revision(), [this](const Subscriber& subscriber) {
    return PeriodOf(*store_, subscriber.subscription());
  });
  const MemoryLine& large = store_->deltas().memory()->large();
  if (large.waited_ms() >= limits::kUnreadMs) subscribers_->EndUnread(large.NowMs());
}

void Broadcaster::FillStatus(v1::StatusResponse* status) const {
  status->mutable_server()->set_broadcast_bytes(bytes_total_->load(std::memory_order_relaxed));
  status->mutable_server()->set_broadcast_pinned_bytes(store_->deltas().memory()->bytes());
  subscribers_->FillStatus(status);
}

}  // namespace lodestone::server
