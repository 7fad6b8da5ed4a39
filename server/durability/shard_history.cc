#include "server/durability/shard_history.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lodestone::server {

bool ShardHistory::Takes(const v1::LogRecord& record, const Shard& shard) {
  if (fork_.has_value() || HasEnded(record.term(), record.version())) return false;
  const bool begins_term = record.has_previous_term() && record.term() > shard.term();
  // An owner of the shard's term came in between, and the one of the record's went on from before it: nothing of that
  // term was acknowledged.
  const bool left_out = record.previous_term() < shard.term();
  // A follower of what the shard was restored from took over at an earlier version: it had all that was acknowledged.
  const bool goes_back = record.previous_term() == shard.term() && record.version() <= shard.version();
  if (!begins_term || !(left_out || goes_back)) return true;
  fork_ = {shard.term(), left_out ? 0 : record.version()};
  return false;
}

std::string ShardHistory::BeginAgain() {
  const Fork fork = *fork_;
  std::vector<Fork> forks = std::move(forks_);
  forks.push_back(fork);
  const bool beyond = newest_term_ > 0 && beyond_;
  const uint64_t newest_term = newest_term_;
  *this = ShardHistory();
  forks_ = std::move(forks);
  beyond_ = beyond;
  newest_term_ = newest_term;
  return absl::StrCat("a newer checkpoint is passed over: of what the owner of term ", fork.term,
                      " applied, nothing from version ", fork.version,
                      " on was acknowledged, and the next owner went another way");
}

bool ShardHistory::HasEnded(uint64_t term, Version version) const {
  return std::any_of(forks_.begin(), forks_.end(),
                     [&](const Fork& fork) { return fork.term == term && version >= fork.version; });
}

void ShardHistory::LeaveOut(const v1::LogRecord& record, const Shard& shard) {
  if (record.term() < shard.term() || HasEnded(record.term(), record.version())) return;  // It was applied in vain.
  beyond_ = true;
  if (!known_term_.has_value()) known_term_ = shard.term();
  if (record.term() <= *known_term_) return;
  ambiguous_ |= !record.has_previous_term() || record.previous_term() != *known_term_;
  known_term_ = record.term();
}

absl::Status ShardHistory::CheckReached(const Shard& shard, Version wanted) const {
  if (!beyond_) return absl::OkStatus();
  if (shard.version() != wanted) {
    return absl::FailedPreconditionError(absl::StrCat(
        "shard ", shard.id(), " cannot be brought to version ", wanted,
        ": its checkpoints that are not beyond it, and the log, lead to version ", shard.version(), " only"));
  }
  if (!ambiguous_ && newest_term_ <= known_term_.value_or(shard.term())) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("shard ", shard.id(), " has had another owner since version ", wanted,
                   ", perhaps from an earlier version on, which the log here does not say: name a checkpoint"));
}

}  // namespace lodestone::server
