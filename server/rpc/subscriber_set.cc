#include "server/rpc/subscriber_set.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/subscriber.h"

namespace lodestone::server {
namespace {

absl::Status OtherShards() {
  return absl::UnavailableError("the shards that this ps owns have changed; subscribe again");
}

absl::Status ShutsDown() { return absl::UnavailableError("the ps shuts down; subscribe again when it is back"); }

}  // namespace

uint64_t SubscriberSet::generation() const {
  MutexLock lock(&mu_);
  return generation_;
}

absl::Status SubscriberSet::Add(std::shared_ptr<Subscriber> subscriber, Period period, uint64_t generation) {
  {
    MutexLock lock(&mu_);
    if (closed_) return ShutsDown();
    if (generation_ != generation) return OtherShards();
    if (entries_.size() >= subscribers_max_) {
      for (auto entry = entries_.begin(); entry != entries_.end();) {
        entry = entry->second.subscriber->finished() ? Erase(entry) : std::next(entry);
      }
    }
    if (entries_.size() >= subscribers_max_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("this ps has ", subscribers_max_, " subscribers, its maximum; raise server.subscribers_max"));
    }
    const uint64_t id = subscriber->id();
    if (period.time.count() > 0) schedule_.Add(id, period.time, std::chrono::steady_clock::now());
    entries_.emplace(id, Entry{std::move(subscriber), period});
    size_ = entries_.size();
  }
  if (period.time.count() > 0) queue_->Wake();
  return absl::OkStatus();
}

void SubscriberSet::SetPeriods(uint64_t revision,
                               const std::function<std::chrono::milliseconds(const Subscriber&)>& time_of) {
  bool moved = false;
  {
    MutexLock lock(&mu_);
    const Time now = std::chrono::steady_clock::now();
    for (auto& [id, entry] : entries_) {
      if (entry.period.revision == revision) continue;
      const Period before = std::exchange(entry.period, {revision, time_of(*entry.subscriber)});
      if (entry.period.time == before.time) continue;
      if (before.time.count() > 0) schedule_.Remove(id, before.time);
      if (entry.period.time.count() > 0) schedule_.Add(id, entry.period.time, now);
      moved = true;
    }
  }
  if (moved) queue_->Wake();
}

void SubscriberSet::CancelAll() {
  std::vector<std::shared_ptr<Subscriber>> all;
  {
    MutexLock lock(&mu_);
    ++generation_;
    all = All();
  }
  for (const auto& subscriber : all) subscriber->Cancel(OtherShards());
}

void SubscriberSet::Close() {
  std::vector<std::shared_ptr<Subscriber>> all;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    all = All();
  }
  for (const auto& subscriber : all) subscriber->Cancel(ShutsDown());
  queue_->Close();
}

void SubscriberSet::EndUnread(int64_t now_ms) {
  std::vector<std::shared_ptr<Subscriber>> all;
  {
    MutexLock lock(&mu_);
    all = All();
  }
  for (const auto& subscriber : all) subscriber->EndIfUnread(now_ms);
}

void SubscriberSet::ServeTables(std::span<const TableId> tables) {
  if (size_.load(std::memory_order_relaxed) > 0) queue_->AddDue(tables);
}

void SubscriberSet::RunThread() {
  while (const std::optional<BroadcastQueue::Work> work = queue_->Await(NextDue())) {
    for (const auto& subscriber : TakeDue(work->due, std::chrono::steady_clock::now())) subscriber->Serve();
    for (const auto& subscriber : work->ready) {
      subscriber->Run();
      if (subscriber->finished()) Remove(subscriber->id());
    }
  }
}

std::optional<SubscriberSet::Time> SubscriberSet::NextDue() const {
  MutexLock lock(&mu_);
  return schedule_.next();
}

std::vector<std::shared_ptr<Subscriber>> SubscriberSet::TakeDue(std::span<const TableId> tables, Time now) {
  std::vector<std::shared_ptr<Subscriber>> due;
  MutexLock lock(&mu_);
  const std::vector<uint64_t> by_time = schedule_.TakeDue(now);
  for (const uint64_t id : by_time) due.push_back(entries_.at(id).subscriber);
  if (tables.empty()) return due;
  for (const auto& [id, entry] : entries_) {
    if (entry.subscriber->SubscribedToAny(tables)) due.push_back(entry.subscriber);
  }
  if (by_time.empty()) return due;
  std::sort(due.begin(), due.end());
  due.erase(std::unique(due.begin(), due.end()), due.end());
  return due;
}

std::vector<std::shared_ptr<Subscriber>> SubscriberSet::All() const {
  std::vector<std::shared_ptr<Subscriber>> all;
  for (const auto& [id, entry] : entries_) all.push_back(entry.subscriber);
  return all;
}

void SubscriberSet::Remove(uint64_t id) {
  MutexLock lock(&mu_);
  const auto entry = entries_.find(id);
  if (entry != entries_.end()) Erase(entry);
}

SubscriberSet::Entries::iterator SubscriberSet::Erase(Entries::iterator entry) {
  const std::chrono::milliseconds period = entry->second.period.time;
  if (period.count() > 0) schedule_.Remove(entry->first, period);
  const auto next = entries_.erase(entry);
  size_ = entries_.size();
  return next;
}

void SubscriberSet::FillStatus(v1::StatusResponse* status) const {
  MutexLock lock(&mu_);
  for (const auto& [id, entry] : entries_) {
    if (!entry.subscriber->finished()) entry.subscriber->FillStatus(status->add_subscribers());
  }
}

}  // namespace lodestone::server
