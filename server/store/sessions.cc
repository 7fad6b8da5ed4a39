#include "server/store/sessions.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/incarnation.h"
#include "common/base/limits.h"

namespace lodestone::server {
namespace {

// As incarnations count time. REQUIRES: ms >= 0.
Incarnation MicrosOf(int64_t ms) { return static_cast<Incarnation>(ms) * 1000; }

}  // namespace

absl::Status Sessions::Open(Incarnation worker, int64_t now_ms) {
  MutexLock lock(&mu_);
  const auto found = sessions_.find(worker);
  if (found != sessions_.end()) {
    found->second.last_contact_ms = now_ms;
    return absl::OkStatus();
  }
  if (ended_.contains(worker)) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker incarnation ", worker, " has left or died, as the coordinator says; it must join again"));
  }
  if (worker <= forgotten_max_) {
    return absl::FailedPreconditionError(
        absl::StrCat("worker incarnation ", worker, " may have had a session here that was forgotten after ",
                     limits::kSessionIdleMaxMs / 1000, " s without a call; it must join again as a new incarnation"));
  }
  // A session lives for kSessionIdleMaxMs at least. Then its incarnation, and so forgotten_max_, is below those that
  // workers join with.
  if (worker > GivenMax(now_ms) + MicrosOf(limits::kSessionIdleMaxMs)) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker incarnation ", worker, " is more than ", limits::kSessionIdleMaxMs / 3600'000,
                     " h ahead of this ps's clock, and of its coordinator's by what this ps knows: no coordinator gave "
                     "it, or the clocks of this machine and of the coordinator's are wrong"));
  }
  if (sessions_.size() >= limits::kSessionsMax && !DropOneWithoutPushes()) {
    return absl::ResourceExhaustedError(absl::StrCat("this ps has ", sessions_.size(), " worker sessions, its limit"));
  }
  sessions_[worker].last_contact_ms = now_ms;
  return absl::OkStatus();
}

Incarnation Sessions::GivenMax(int64_t now_ms) const {
  const Incarnation by_wall_clock = FirstIncarnation(wall_clock_());
  return given_ == 0 ? by_wall_clock
                     : std::max(by_wall_clock, given_ + MicrosOf(std::max<int64_t>(0, now_ms - given_ms_)));
}

void Sessions::NoteGiven(Incarnation incarnation, int64_t now_ms) {
  MutexLock lock(&mu_);
  if (incarnation <= GivenMax(now_ms)) return;
  given_ = incarnation;
  given_ms_ = now_ms;
}

absl::Status Sessions::Push(Incarnation worker, Sequence sequence, Clock clock, int64_t now_ms) {
  if (worker == 0) return absl::InvalidArgumentError("a push needs a worker_incarnation");
  if (sequence == 0) return absl::InvalidArgumentError("a push needs a positive sequence");
  MutexLock lock(&mu_);
  const auto found = sessions_.find(worker);
  if (found == sessions_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("worker incarnation ", worker,
                                                      " has no session on this ps: it was forgotten, or the ps was "
                                                      "restarted; join again"));
  }
  Session& session = found->second;
  session.last_contact_ms = now_ms;
  session.clock = std::max(session.clock, clock);
  session.sequence = std::max(session.sequence, sequence);
  session.has_pushed = true;
  return absl::OkStatus();
}

bool Sessions::PushApplied(Incarnation worker, Sequence sequence, bool counted) {
  MutexLock lock(&mu_);
  const auto found = sessions_.find(worker);
  if (found == sessions_.end()) return false;
  Session& session = found->second;
  ++session.pushes;
  if (session.dues != dues_) session.due = session.counted;
  if (counted) session.counted = std::max(session.counted, sequence);
  session.dues = dues_;
  return sequence <= session.due;
}

void Sessions::NoteDue() {
  MutexLock lock(&mu_);
  ++dues_;
}

void Sessions::PushRefused(Incarnation worker) {
  MutexLock lock(&mu_);
  const auto found = sessions_.find(worker);
  if (found != sessions_.end()) ++found->second.refused;
}

void Sessions::Contact(Incarnation worker, int64_t now_ms) {
  if (worker == 0) return;
  MutexLock lock(&mu_);
  const auto found = sessions_.find(worker);
  if (found != sessions_.end()) found->second.last_contact_ms = now_ms;
}

void Sessions::Restore(Incarnation worker, int64_t now_ms) {
  MutexLock lock(&mu_);
  if (ended_.contains(worker)) return;
  Session& session = sessions_[worker];
  session.last_contact_ms = now_ms;
  session.has_pushed = true;
}

bool Sessions::Adopt(Incarnation worker, int64_t now_ms) {
  MutexLock lock(&mu_);
  const auto found = sessions_.find(worker);
  if (found != sessions_.end()) {
    found->second.last_contact_ms = now_ms;
    return false;
  }
  if (worker <= forgotten_max_ || ended_.contains(worker)) return false;
  Session& session = sessions_[worker];
  session.last_contact_ms = now_ms;
  session.has_pushed = true;
  return true;
}

void Sessions::RestoreForgotten(Incarnation worker) {
  MutexLock lock(&mu_);
  Forget(worker);
}

void Sessions::RaiseForgotten(Incarnation worker) {
  MutexLock lock(&mu_);
  RaiseTo(worker);
}

bool Sessions::End(Incarnation worker) {
  MutexLock lock(&mu_);
  NoteEnded(worker);
  const bool had_one = sessions_.erase(worker) > 0;
  ends_.fetch_add(1, std::memory_order_release);
  return had_one;
}

void Sessions::RestoreEnded(std::span<const Incarnation> workers) {
  MutexLock lock(&mu_);
  for (const Incarnation worker : workers) {
    NoteEnded(worker);
    sessions_.erase(worker);  // An older checkpoint, from which another shard is restored, may have had it.
  }
}

bool Sessions::IsOpen(Incarnation worker) const {
  MutexLock lock(&mu_);
  return sessions_.contains(worker);
}

bool Sessions::IsOver(Incarnation worker) const {
  MutexLock lock(&mu_);
  return !sessions_.contains(worker) && (worker <= forgotten_max_ || ended_.contains(worker));
}

bool Sessions::DropOneWithoutPushes() {
  auto oldest = sessions_.end();
  for (auto it = sessions_.begin(); it != sessions_.end(); ++it) {
    if (it->second.has_pushed) continue;
    if (oldest == sessions_.end() || it->second.last_contact_ms < oldest->second.last_contact_ms) oldest = it;
  }
  if (oldest == sessions_.end()) return false;
  sessions_.erase(oldest);
  ends_.fetch_add(1, std::memory_order_release);
  return true;
}

void Sessions::Forget(Incarnation worker) {
  sessions_.erase(worker);
  RaiseTo(worker);
  ends_.fetch_add(1, std::memory_order_release);
}

void Sessions::RaiseTo(Incarnation forgotten_max) {
  forgotten_max_ = std::max(forgotten_max_, forgotten_max);
  ended_.erase(ended_.begin(), ended_.upper_bound(forgotten_max_));
}

void Sessions::NoteEnded(Incarnation worker) {
  if (worker <= forgotten_max_) return;
  ended_.insert(worker);
  if (ended_.size() > kEndedMax) RaiseTo(*ended_.begin());
}

Sessions::Known Sessions::known() const {
  MutexLock lock(&mu_);
  Known known;
  known.forgotten_max = forgotten_max_;
  for (const auto& [worker, session] : sessions_) known.open.push_back(worker);
  std::sort(known.open.begin(), known.open.end());
  known.ended.assign(ended_.begin(), ended_.end());
  return known;
}

std::vector<Incarnation> Sessions::ForgetIdle(int64_t now_ms) {
  std::vector<Incarnation> forgotten;
  MutexLock lock(&mu_);
  for (const auto& [worker, session] : sessions_) {
    if (now_ms - session.last_contact_ms > limits::kSessionIdleMaxMs) forgotten.push_back(worker);
  }
  for (const Incarnation worker : forgotten) Forget(worker);
  return forgotten;
}

void Sessions::FillStatus(int64_t now_ms, v1::StatusResponse* status) const {
  {
    MutexLock lock(&mu_);  // Pushes and pulls wait for it: what can be done without it is.
    for (const auto& [worker, session] : sessions_) {
      v1::SessionStatus* out = status->add_sessions();
      out->set_worker_incarnation(worker);
      out->set_clock(session.clock);
      out->set_last_contact_seconds(static_cast<double>(now_ms - session.last_contact_ms) / 1000);
      out->set_pushes(session.pushes);
      out->set_sequence(session.sequence);
      out->set_refused(session.refused);
    }
  }
  std::sort(status->mutable_sessions()->begin(), status->mutable_sessions()->end(),
            [](const auto& a, const auto& b) { return a.worker_incarnation() < b.worker_incarnation(); });
}

}  // namespace lodestone::server
