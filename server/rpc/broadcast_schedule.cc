#include "server/rpc/broadcast_schedule.h"

#include <algorithm>

namespace lodestone::server {

void BroadcastSchedule::Add(uint64_t subscriber, Period period, Time now) {
  const auto [group, first] = groups_.try_emplace(period);
  if (first) group->second.next = now + period;
  group->second.subscribers.insert(subscriber);
}

void BroadcastSchedule::Remove(uint64_t subscriber, Period period) {
  const auto group = groups_.find(period);
  if (group == groups_.end()) return;
  group->second.subscribers.erase(subscriber);
  if (group->second.subscribers.empty()) groups_.erase(group);
}

std::vector<uint64_t> BroadcastSchedule::TakeDue(Time now) {
  std::vector<uint64_t> due;
  for (auto& [period, group] : groups_) {
    if (group.next > now) continue;
    due.insert(due.end(), group.subscribers.begin(), group.subscribers.end());
    group.next += ((now - group.next) / period + 1) * period;
  }
  return due;
}

std::optional<BroadcastSchedule::Time> BroadcastSchedule::next() const {
  std::optional<Time> next;
  for (const auto& [period, group] : groups_) next = next.has_value() ? std::min(*next, group.next) : group.next;
  return next;
}

}  // namespace lodestone::server
