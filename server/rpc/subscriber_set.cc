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

absl::Status SubscriberSet::Add(std::shared_ptr<Subscriber> subscriber, std::chrono::milliseconds period,
                                uint64_t generation) {
  MutexLock lock(&mu_);
  if (closed_) return ShutsDown();
  if (generation_ != generation) return OtherShards();
  RemoveFinished();
  if (entries_.size() >= subscribers_max_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this ps has ", subscribers_max_, " subscribers, its maximum; raise server.subscribers_max"));
  }
  entries_.push_back({std::move(subscriber), period, std::chrono::steady_clock::now() + period});
  changed_.NotifyAll();
  return absl::OkStatus();
}

void SubscriberSet::CancelAll() {
  std::vector<Entry> entries;
  {
    MutexLock lock(&mu_);
    ++generation_;
    entries = entries_;
  }
  for (const Entry& entry : entries) entry.subscriber->Cancel(OtherShards());
}

void SubscriberSet::Close() {
  std::vector<Entry> entries;
  {
    MutexLock lock(&mu_);
    closed_ = true;
    entries = entries_;
    changed_.NotifyAll();
  }
  for (const Entry& entry : entries) entry.subscriber->Cancel(ShutsDown());
}

void SubscriberSet::ServeTable(TableId table) {
  std::vector<std::shared_ptr<Subscriber>> due;
  {
    MutexLock lock(&mu_);
    for (const Entry& entry : entries_) {
      if (entry.subscriber->SubscribedTo(table)) due.push_back(entry.subscriber);
    }
  }
  for (const std::shared_ptr<Subscriber>& subscriber : due) subscriber->Serve();
}

std::vector<std::shared_ptr<Subscriber>> SubscriberSet::TakeDue(Time now, std::optional<Time>* next) {
  std::vector<std::shared_ptr<Subscriber>> due;
  next->reset();
  for (Entry& entry : entries_) {
    if (entry.period.count() == 0) continue;
    if (entry.next <= now) {
      due.push_back(entry.subscriber);
      entry.next = std::max(entry.next + entry.period, now);  // Keeps the rhythm; a missed broadcast is skipped.
      if (entry.next == now) entry.next += entry.period;
    }
    if (!next->has_value() || entry.next < **next) *next = entry.next;
  }
  return due;
}

void SubscriberSet::RunTimer() {
  MutexLock lock(&mu_);
  while (!closed_) {
    RemoveFinished();
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

void SubscriberSet::FillStatus(v1::StatusResponse* status) const {
  MutexLock lock(&mu_);
  for (const Entry& entry : entries_) {
    if (!entry.subscriber->finished()) entry.subscriber->FillStatus(status->add_subscribers());
  }
}

void SubscriberSet::RemoveFinished() {
  std::erase_if(entries_, [](const Entry& entry) { return entry.subscriber->finished(); });
}

}  // namespace lodestone::server
