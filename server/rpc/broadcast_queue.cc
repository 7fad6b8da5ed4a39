#include "server/rpc/broadcast_queue.h"

#include <algorithm>
#include <utility>

#include "server/rpc/subscriber.h"

namespace lodestone::server {

void BroadcastQueue::AddDue(std::span<const TableId> tables) {
  MutexLock lock(&mu_);
  if (closed_) return;
  due_.insert(tables.begin(), tables.end());
  changed_.NotifyOne();
}

void BroadcastQueue::Run(std::shared_ptr<Subscriber> subscriber) {
  {
    MutexLock lock(&mu_);
    if (!closed_) {
      ready_.push_back(std::move(subscriber));
      changed_.NotifyOne();
      return;
    }
  }
  subscriber->Run();
}

void BroadcastQueue::Wake() {
  MutexLock lock(&mu_);
  woken_ = true;
  changed_.NotifyOne();
}

void BroadcastQueue::Close() {
  MutexLock lock(&mu_);
  closed_ = true;
  changed_.NotifyOne();
}

std::optional<BroadcastQueue::Work> BroadcastQueue::Await(std::optional<Time> until) {
  Work work;
  MutexLock lock(&mu_);
  while (due_.empty() && ready_.empty() && !woken_ && !closed_) {
    if (!until.has_value()) {
      changed_.Wait(&mu_);
    } else if (!changed_.WaitUntil(&mu_, *until)) {
      break;
    }
  }
  if (closed_ && ready_.empty()) return std::nullopt;
  woken_ = false;
  work.due.assign(due_.begin(), due_.end());
  due_.clear();
  std::sort(work.due.begin(), work.due.end());
  work.ready.swap(ready_);
  return work;
}

}  // namespace lodestone::server
