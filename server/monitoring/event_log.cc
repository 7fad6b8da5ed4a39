#include "server/monitoring/event_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/limits.h"
#include "common/base/nonce.h"
#include "common/base/utf8.h"

namespace lodestone::server {
namespace {

constexpr size_t kWordsBytesMax = 100;  // Of a kind, and of who.
constexpr size_t kTextBytesMax = 1024;
constexpr int64_t kRefusedEveryMs = 10'000;
constexpr size_t kRefusedWorkersMax = 16;
constexpr absl::string_view kIncarnation = "incarnation ";

// `text` cut to `bytes_max`, with ? for whatever is no UTF-8, which could not be sent.
std::string Clean(absl::string_view text, size_t bytes_max) {
  const std::string_view given(text.data(), text.size());
  std::string clean;
  for (size_t i = 0; i < given.size() && clean.size() < bytes_max;) {
    const size_t length = Utf8Length(given, i);
    clean += length == 0 ? std::string_view("?") : given.substr(i, length);
    i += std::max<size_t>(1, length);
  }
  return std::string(Utf8Prefix(clean, bytes_max));
}

}  // namespace

EventLog::EventLog(const TimeSource* time) : time_(time), incarnation_(DrawNonce()) {}

void EventLog::Add(absl::string_view kind, absl::string_view who, absl::string_view text) {
  MutexLock lock(&mu_);
  added_ms_ = std::max(added_ms_ + 1, static_cast<uint64_t>(std::max<int64_t>(0, time_->NowMs())));
  Append(added_ms_, kind, who, text);
}

void EventLog::Take(const v1::Event& event) {
  MutexLock lock(&mu_);
  Append(event.time_ms(), event.kind(), event.who(), event.text());
}

void EventLog::Append(uint64_t time_ms, absl::string_view kind, absl::string_view who, absl::string_view text) {
  v1::Event event;
  event.set_id(++newest_id_);
  event.set_time_ms(time_ms);
  event.set_kind(Clean(kind, kWordsBytesMax));
  event.set_who(Clean(who, kWordsBytesMax));
  event.set_text(Clean(text, kTextBytesMax));
  events_.push_back(std::move(event));
  if (events_.size() > limits::kEventsMax) events_.pop_front();
}

std::vector<v1::Event> EventLog::After(uint64_t after_id, size_t count) const {
  MutexLock lock(&mu_);
  if (after_id >= newest_id_) return {};
  const size_t first = events_.size() - std::min<uint64_t>(events_.size(), newest_id_ - after_id);
  const size_t end = first + std::min(count, events_.size() - first);
  return {events_.begin() + static_cast<ptrdiff_t>(first), events_.begin() + static_cast<ptrdiff_t>(end)};
}

v1::EventsResponse EventLog::Tell(uint64_t after_id) const {
  v1::EventsResponse response;
  response.set_incarnation(incarnation_);
  for (v1::Event& event : After(after_id, limits::kEventsMax)) *response.add_events() = std::move(event);
  return response;
}

void RefusedPushes::Note(Incarnation worker, const absl::Status& why) {
  if (absl::IsUnavailable(why)) return;
  const int64_t now_ms = time_->NowMs();
  MutexLock lock(&mu_);
  if (!counts_.contains(worker) && counts_.size() >= kRefusedWorkersMax) worker = 0;
  const auto [found, is_first] = counts_.try_emplace(worker);
  Count& count = found->second;
  ++count.untold;
  count.why = std::string(why.message());
  if (is_first || now_ms - count.told_ms >= kRefusedEveryMs) Tell(worker, now_ms, &count);
}

void RefusedPushes::Tick() {
  const int64_t now_ms = time_->NowMs();
  MutexLock lock(&mu_);
  for (auto at = counts_.begin(); at != counts_.end();) {
    const auto entry = at++;  // Erasing ends the iterators to what is erased only.
    if (now_ms - entry->second.told_ms < kRefusedEveryMs) continue;
    if (entry->second.untold > 0) {
      Tell(entry->first, now_ms, &entry->second);
    } else {
      counts_.erase(entry);
    }
  }
}

void RefusedPushes::Tell(Incarnation worker, int64_t now_ms, Count* count) {
  const std::string who = worker == 0 ? "other workers" : NameOfIncarnation(worker);
  const std::string what = count->untold == 1 ? std::string(" refused a push: ")
                                              : absl::StrCat(" refused ", count->untold, " pushes, the last one: ");
  events_->Add("refused", who, absl::StrCat(server_, what, count->why));
  count->untold = 0;
  count->told_ms = now_ms;
}

std::string NameOfIncarnation(Incarnation worker) { return absl::StrCat(kIncarnation, worker); }

Incarnation IncarnationNamed(absl::string_view who) {
  Incarnation incarnation = 0;
  if (!absl::ConsumePrefix(&who, kIncarnation)) return 0;
  return absl::SimpleAtoi(who, &incarnation) ? incarnation : 0;
}

}  // namespace lodestone::server
