#include "server/replication/shard_sync.h"

#include <algorithm>
#include <utility>

namespace lodestone::server {

bool ShardSync::Resumes(Incarnation follower, Version position, std::optional<Version> oldest_kept) const {
  // What the follower has confirmed, and what came after it, is this owner's past.
  const bool known = follower_ == follower && confirmed_ > 0 && position >= confirmed_ && position <= appended_;
  return known && (oldest_kept.has_value() ? *oldest_kept <= position + 1 : position == appended_);
}

ShardSync::Attached ShardSync::Attach(Incarnation follower, Version position, std::optional<Version> oldest_kept) {
  const bool resumes = Resumes(follower, position, oldest_kept);
  if (!resumes && counts()) return Attached::kCountsStill;
  attached_ = true;
  sending_state_ = !resumes;
  if (resumes) return Attached::kResumes;
  if (follower_ != follower) reporting_ = false;  // What is under way is about another life.
  follower_ = follower;
  confirmed_ = 0;
  return Attached::kNeedsState;
}

void ShardSync::Detach(int64_t now_ms) {
  attached_ = false;
  sending_state_ = false;
  lost_since_ms_ = now_ms;
  // It joins again if it comes back before the coordinator has heard of that.
  if (state_ == State::kJoining && !told_) Leave(/*late=*/true);
}

void ShardSync::Confirm(Version version) {
  confirmed_ = std::max(confirmed_, version);
  if (counts()) return;
  state_ = State::kJoining;
  mark_ = appended_;
  told_ = false;
}

const char* ShardSync::WhyLate(int64_t now_ms, std::optional<int64_t> waiting_since_ms, int64_t patience_ms) const {
  if (state_ == State::kAlone || state_ == State::kLeaving) return nullptr;
  if (waiting_since_ms.has_value() && now_ms - *waiting_since_ms > patience_ms) return "it does not confirm";
  // Nobody answers for the shard meanwhile, and no acknowledgement need wait for the last update.
  const bool lacks_given_up = handover_ > 0 && confirmed_ < appended_;
  if (lacks_given_up && now_ms - given_up_ms_ > patience_ms) return "it does not confirm what is given up";
  if (!attached_ && now_ms - lost_since_ms_ > patience_ms) return "its stream is gone";
  return nullptr;
}

std::optional<ShardSync::Report> ShardSync::TakeReport() {
  const bool joins = ReadyToJoin();
  if (reporting_ || (!joins && !ReadyToGiveUp() && state_ != State::kLeaving)) return std::nullopt;
  reporting_ = true;
  if (ReadyToGiveUp()) return Report{true, follower_, handover_};
  if (!joins) return Report{false, follower_};
  told_ = true;
  return Report{true, follower_};
}

void ShardSync::OnReportFailed() {
  reporting_ = false;
  if (state_ == State::kJoining) told_ = false;
}

ShardSync::Outcome ShardSync::OnReport(const Report& report, bool accepted, uint64_t epoch) {
  // Otherwise the shard was lost meanwhile, and perhaps won again.
  if (!std::exchange(reporting_, false)) return Outcome::kNothing;
  if (report.gives_up > 0) {
    if (accepted && handover_ == report.gives_up) handover_ = 0;
    return Outcome::kNothing;  // The map says what is to be done.
  }
  if (!report.in_sync) {
    if (!accepted || state_ != State::kLeaving) return Outcome::kNothing;
    Release();
    return Outcome::kReleased;
  }
  if (!accepted) return Outcome::kRejected;
  in_sync_epoch_ = epoch;
  if (state_ == State::kJoining) state_ = State::kInSync;
  return Outcome::kNothing;
}

bool ShardSync::OnMapWithoutFollower(uint64_t epoch, bool named) {
  // Only this ps can have the coordinator count a follower again, and it has not since. Who follows changes with the
  // epoch only: one that is not named did not count any more when its report was answered.
  const bool newer = in_sync_epoch_ > 0 && (epoch > in_sync_epoch_ || (epoch == in_sync_epoch_ && !named));
  // What is reported of one in sync is that the shard is given up, which means nothing without it.
  if (!newer || (state_ != State::kInSync && (state_ != State::kLeaving || reporting_))) return false;
  Release();
  return true;
}

void ShardSync::Release() {
  state_ = State::kAlone;
  told_ = false;
  in_sync_epoch_ = 0;
  if (std::exchange(late_, false) && attached_ && !sending_state_ && confirmed_ >= appended_) Confirm(confirmed_);
}

}  // namespace lodestone::server
