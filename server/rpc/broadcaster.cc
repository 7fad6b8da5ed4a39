#include "server/rpc/broadcaster.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/wire/message.h"
#include "server/store/store.h"

namespace lodestone::server {

Subscriber::Subscriber(Options options, Store* store, DeltaSink* sink, std::shared_ptr<BroadcastBytes> bytes_total)
    : options_(std::move(options)), store_(store), sink_(sink), bytes_total_(std::move(bytes_total)) {
  MutexLock lock(&mu_);
  held_ = options_.held;
  held_.resize(options_.shards.size());
  checked_.resize(options_.shards.size());
}

void Subscriber::Start() {
  {
    MutexLock lock(&mu_);
    started_ = true;
  }
  Pump();
}

void Subscriber::Serve() {
  {
    MutexLock lock(&mu_);
    if (due_ && started_) ++skipped_;
    due_ = true;
  }
  Pump();
}

void Subscriber::OnWritten(bool ok) {
  {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok && !end_.has_value()) end_ = absl::CancelledError("the reader is gone");
  }
  Pump();
}

void Subscriber::Cancel(absl::Status status) {
  {
    MutexLock lock(&mu_);
    if (!end_.has_value()) end_ = std::move(status);
  }
  Pump();
}

bool Subscriber::SubscribedTo(TableId table) const {
  return std::any_of(options_.subscription.tables.begin(), options_.subscription.tables.end(),
                     [table](const DeltaPath::Subscription::Table& t) { return t.id == table; });
}

bool Subscriber::finished() const {
  MutexLock lock(&mu_);
  return finished_;
}

void Subscriber::FillStatus(v1::SubscriberStatus* status) const {
  status->set_worker_incarnation(options_.worker);
  status->set_peer(options_.peer);
  MutexLock lock(&mu_);
  status->set_deltas(deltas_);
  status->set_skipped(skipped_);
  status->set_bytes(bytes_);
}

// Steps are decided under the lock and taken without it, because the store and the sink may call back from within. Only
// one thread takes steps at a time: whoever else has news leaves it in the fields, where the next decision finds it.
void Subscriber::Pump() {
  const std::shared_ptr<Subscriber> self = shared_from_this();
  MutexLock lock(&mu_);
  if (pumping_) return;
  pumping_ = true;
  for (Action action = NextAction(); action != Action::kNothing; action = NextAction()) {
    const size_t shard_index = next_shard_;
    std::optional<DeltaPath::Held> from;
    v1::Delta delta;
    std::vector<grpc::Slice> payload;
    absl::Status status;
    if (action == Action::kCollect) {
      from = held_[shard_index];
      ++next_shard_;
    } else if (action == Action::kWrite) {
      delta.Swap(&message_);
      payload.swap(message_payload_);
      message_bytes_ = 0;
    } else {
      status = *end_;
    }
    mu_.Unlock();
    switch (action) {
      case Action::kCollect:
        store_->deltas().Collect(
            options_.shards[shard_index], options_.subscription, from,
            [self, shard_index](ShardChange change) { self->OnCollected(shard_index, std::move(change)); });
        break;
      case Action::kWrite:
        sink_->Write(std::move(delta), std::move(payload));
        break;
      case Action::kFinish:
        sink_->Finish(std::move(status));
        break;
      case Action::kNothing:
        break;
    }
    mu_.Lock();
  }
  pumping_ = false;
}

Subscriber::Action Subscriber::NextAction() {
  if (!started_ || finished_ || writing_) return Action::kNothing;
  if (end_.has_value()) {
    finished_ = true;
    pending_.clear();
    message_payload_.clear();
    return Action::kFinish;
  }
  if (collecting_) return Action::kNothing;
  if (!round_active_) {
    if (!due_) return Action::kNothing;
    due_ = false;
    round_active_ = true;
    next_shard_ = 0;
  }
  PackMessage();
  const bool full = message_bytes_ >= limits::kDeltaBytesTarget;
  if (!full && pending_.empty() && FindNextShard()) {
    collecting_ = true;
    return Action::kCollect;
  }
  if (message_.shards_size() > 0) {
    writing_ = true;
    ++deltas_;
    bytes_ += message_bytes_;
    bytes_total_->fetch_add(message_bytes_, std::memory_order_relaxed);
    return Action::kWrite;
  }
  round_active_ = false;
  return due_ ? NextAction() : Action::kNothing;
}

bool Subscriber::FindNextShard() {
  for (; next_shard_ < options_.shards.size(); ++next_shard_) {
    const std::optional<DeltaPath::Held>& held = held_[next_shard_];
    if (!held.has_value() || !checked_[next_shard_]) return true;
    if (store_->shards().VersionOf(options_.shards[next_shard_]) != held->version) return true;
  }
  return false;
}

void Subscriber::PackMessage() {
  while (!pending_.empty()) {
    ShardChange::Piece& piece = pending_.front();
    if (message_bytes_ > 0 && message_bytes_ + piece.payload_bytes > limits::kDeltaBytesTarget) return;
    const int last = message_.shards_size() - 1;
    v1::Delta::ShardDelta* delta;
    if (last >= 0 && message_.shards(last).shard() == piece.delta.shard()) {
      delta = message_.mutable_shards(last);  // The same change goes on: one entry with one more part.
      delta->set_complete(piece.delta.complete());
      delta->mutable_parts()->MergeFrom(piece.delta.parts());
    } else {
      message_.add_shards()->Swap(&piece.delta);
    }
    std::move(piece.payload.begin(), piece.payload.end(), std::back_inserter(message_payload_));
    message_bytes_ += piece.payload_bytes;
    pending_.pop_front();
  }
}

void Subscriber::OnCollected(size_t shard_index, ShardChange change) {
  {
    MutexLock lock(&mu_);
    collecting_ = false;
    held_[shard_index] = {change.term, change.version};
    checked_[shard_index] = true;
    if (!finished_) pending_ = std::move(change.pieces);
  }
  Pump();
}

// What the Broadcaster, its timer and the store's listener share.
class Broadcaster::Impl {
 public:
  Impl(Store* store, uint32_t subscribers_max) : store_(store), subscribers_max_(subscribers_max) {}

  absl::StatusOr<std::shared_ptr<Subscriber>> Add(const v1::SubscribeRequest& request, std::string peer,
                                                  DeltaSink* sink);
  void EndAll();
  void Shutdown();
  void FillStatus(v1::StatusResponse* status) const;
  // A table had its every_pushes pushes.
  void ServeTable(TableId table);
  // Serves by time until Shutdown: sleeps to the next due moment, without one until there is one.
  void RunTimer();

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Entry {
    std::shared_ptr<Subscriber> subscriber;
    std::chrono::milliseconds period{0};  // 0: not served by time.
    Time next;
  };

  // The shortest every_ms of the tables that have one; 0 if none has.
  std::chrono::milliseconds PeriodOf(const DeltaPath::Subscription& subscription) const;
  void ForgetFinished() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Who is due at `now`; sets their next moments. `next`: the earliest of all.
  std::vector<std::shared_ptr<Subscriber>> TakeDue(Time now, std::optional<Time>* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Store* const store_;
  const uint32_t subscribers_max_;
  const std::shared_ptr<BroadcastBytes> bytes_total_ = std::make_shared<BroadcastBytes>(0);

  mutable Mutex mu_;
  CondVar changed_;  // entries_ or shut_down_.
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);
  uint64_t endings_ ABSL_GUARDED_BY(mu_) = 0;  // Calls of EndAll.
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
};

absl::StatusOr<std::shared_ptr<Subscriber>> Broadcaster::Impl::Add(const v1::SubscribeRequest& request,
                                                                   std::string peer, DeltaSink* sink) {
  uint64_t endings = 0;
  {
    MutexLock lock(&mu_);
    endings = endings_;
  }
  std::vector<ShardId> shards = store_->shards().owned();  // Perhaps none now: the stream ends when some come.
  if (request.tables().empty()) return absl::InvalidArgumentError("a subscription needs at least one table");
  LODESTONE_ASSIGN_OR_RETURN(DeltaPath::Subscription subscription, store_->deltas().MakeSubscription(request));
  const std::chrono::milliseconds period = PeriodOf(subscription);
  std::vector<std::optional<DeltaPath::Held>> held(shards.size());
  for (const auto& holds : request.held()) {
    const auto shard = std::lower_bound(shards.begin(), shards.end(), holds.shard());
    if (shard == shards.end() || *shard != holds.shard()) continue;
    held[shard - shards.begin()] = DeltaPath::Held{holds.term(), holds.version()};
  }
  auto subscriber =
      std::make_shared<Subscriber>(Subscriber::Options{request.worker_incarnation(), std::move(peer),
                                                       std::move(subscription), std::move(shards), std::move(held)},
                                   store_, sink, bytes_total_);
  MutexLock lock(&mu_);
  if (shut_down_) return absl::UnavailableError("the server shuts down");
  if (endings_ != endings) return absl::UnavailableError("this ps owns other shards now; subscribe again");
  ForgetFinished();
  if (entries_.size() >= subscribers_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this server has its server.subscribers_max = ", subscribers_max_, " subscribers"));
  }
  entries_.push_back({subscriber, period, std::chrono::steady_clock::now() + period});
  changed_.NotifyAll();
  return subscriber;
}

std::chrono::milliseconds Broadcaster::Impl::PeriodOf(const DeltaPath::Subscription& subscription) const {
  uint32_t shortest = 0;
  for (const DeltaPath::Subscription::Table& table : subscription.tables) {
    const std::optional<v1::Broadcast> broadcast = store_->tables().BroadcastOf(table.id);
    const uint32_t every_ms = broadcast.has_value() ? broadcast->every_ms() : 0;
    if (every_ms > 0 && (shortest == 0 || every_ms < shortest)) shortest = every_ms;
  }
  return std::chrono::milliseconds(shortest);
}

void Broadcaster::Impl::ForgetFinished() {
  std::erase_if(entries_, [](const Entry& entry) { return entry.subscriber->finished(); });
}

void Broadcaster::Impl::EndAll() {
  std::vector<Entry> entries;
  {
    MutexLock lock(&mu_);
    ++endings_;
    entries = entries_;
  }
  for (const Entry& entry : entries) {
    entry.subscriber->Cancel(absl::UnavailableError("this ps owns other shards now; subscribe again"));
  }
}

void Broadcaster::Impl::Shutdown() {
  std::vector<Entry> entries;
  {
    MutexLock lock(&mu_);
    shut_down_ = true;
    entries = entries_;
    changed_.NotifyAll();
  }
  for (const Entry& entry : entries) entry.subscriber->Cancel(absl::UnavailableError("the server shuts down"));
}

void Broadcaster::Impl::FillStatus(v1::StatusResponse* status) const {
  status->mutable_server()->set_broadcast_bytes(bytes_total_->load(std::memory_order_relaxed));
  MutexLock lock(&mu_);
  for (const Entry& entry : entries_) {
    if (!entry.subscriber->finished()) entry.subscriber->FillStatus(status->add_subscribers());
  }
}

void Broadcaster::Impl::ServeTable(TableId table) {
  std::vector<std::shared_ptr<Subscriber>> due;
  {
    MutexLock lock(&mu_);
    for (const Entry& entry : entries_) {
      if (entry.subscriber->SubscribedTo(table)) due.push_back(entry.subscriber);
    }
  }
  for (const std::shared_ptr<Subscriber>& subscriber : due) subscriber->Serve();
}

std::vector<std::shared_ptr<Subscriber>> Broadcaster::Impl::TakeDue(Time now, std::optional<Time>* next) {
  std::vector<std::shared_ptr<Subscriber>> due;
  next->reset();
  for (Entry& entry : entries_) {
    if (entry.period.count() == 0) continue;
    if (entry.next <= now) {
      due.push_back(entry.subscriber);
      entry.next = std::max(entry.next + entry.period, now);  // Keeps the beat, but makes up for nothing.
      if (entry.next == now) entry.next += entry.period;
    }
    if (!next->has_value() || entry.next < **next) *next = entry.next;
  }
  return due;
}

void Broadcaster::Impl::RunTimer() {
  MutexLock lock(&mu_);
  while (!shut_down_) {
    ForgetFinished();
    std::optional<Time> next;
    const std::vector<std::shared_ptr<Subscriber>> due = TakeDue(std::chrono::steady_clock::now(), &next);
    if (!due.empty()) {
      mu_.Unlock();
      for (const std::shared_ptr<Subscriber>& subscriber : due) subscriber->Serve();
      mu_.Lock();
    } else if (next.has_value()) {
      changed_.WaitUntil(&mu_, *next);
    } else {
      changed_.Wait(&mu_);
    }
  }
}

Broadcaster::Broadcaster(Store* store, uint32_t subscribers_max)
    : impl_(std::make_shared<Impl>(store, subscribers_max)) {
  store->pushes().SetBroadcastListener([impl = impl_](TableId table) { impl->ServeTable(table); });
  timer_ = std::thread([impl = impl_] { impl->RunTimer(); });
}

Broadcaster::~Broadcaster() {
  Shutdown();
  timer_.join();
}

absl::StatusOr<std::shared_ptr<Subscriber>> Broadcaster::Add(const v1::SubscribeRequest& request, std::string peer,
                                                             DeltaSink* sink) {
  return impl_->Add(request, std::move(peer), sink);
}

void Broadcaster::EndAll() { impl_->EndAll(); }

void Broadcaster::Shutdown() { impl_->Shutdown(); }

void Broadcaster::FillStatus(v1::StatusResponse* status) const { impl_->FillStatus(status); }

}  // namespace lodestone::server
