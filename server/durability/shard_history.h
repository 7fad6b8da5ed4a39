// What a recovery knows of the history of one shard: which of its checkpoints and log records are of the history that
// was acknowledged, where owners took over from each other.
//
// An owner that was replaced may have applied updates that nobody confirmed. Its states of that term are then of a
// history that ended: the log of the next owner goes on from before them.
//
// Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "proto/log.pb.h"
#include "server/shard/shard.h"

namespace lodestone::server {

class ShardHistory {
 public:
  // Goes on from a checkpoint of that lineage, or from nothing with a record of it.
  void StartFrom(uint64_t lineage) { lineage_ = lineage; }
  uint64_t lineage() const { return lineage_; }  // 0: it has started from nothing yet.

  // Whether a record is to be replayed on the shard: not if it is of a history that has ended before it, nor if it
  // shows that the shard was brought back to such a one, and nothing of the log after that.
  bool Takes(const v1::LogRecord& record, const Shard& shard);
  // Whether it has come to such a record.
  bool forked() const { return fork_.has_value(); }
  // Begins again, from a state that is not of that history, and returns what to tell of it. REQUIRES: forked().
  std::string BeginAgain();
  // Whether a state, or a record, of this term and version is of a history that has been found to have ended before it.
  bool HasEnded(uint64_t term, Version version) const;

  // A record of the shard was left out since it is beyond the version that is wanted.
  void LeaveOut(const v1::LogRecord& record, const Shard& shard);
  // A checkpoint, of the newest term that is known, is beyond it.
  void LeaveOutNewest(uint64_t term) { beyond_ = true, newest_term_ = term; }
  // FAILED_PRECONDITION, naming the shard, if there is more than the shard now holds, and it is not at the version that
  // is wanted, or the one that it is at may have been made again by a later owner.
  absl::Status CheckReached(const Shard& shard, Version wanted) const;

 private:
  // The history of `term` ends before `version`.
  struct Fork {
    uint64_t term = 0;
    Version version = 0;
  };

  uint64_t lineage_ = 0;
  std::optional<Fork> fork_;
  std::vector<Fork> forks_;  // Of the attempts before.

  bool beyond_ = false;                 // There is more than what is wanted.
  uint64_t newest_term_ = 0;            // Of checkpoints.
  std::optional<uint64_t> known_term_;  // The last of which is known that it, and each before it, began beyond.
  bool ambiguous_ = false;              // A term perhaps began before.
};

}  // namespace lodestone::server
