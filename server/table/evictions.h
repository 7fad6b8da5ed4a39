// The rows that updates push out of an embedding table: chosen and noted when an update is applied first, repeated when
// it is replayed. Replay must not choose again, because the choice depends on pulls too, which are not logged.
//
// Not thread-safe. Belongs to one update of one shard.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/types.h"

namespace lodestone::server {

// Rows of one table that made room together.
struct EvictedKeys {
  TableId table = 0;
  std::vector<Key> keys;
};

class Evictions {
 public:
  // Of an update that is applied for the first time.
  Evictions() = default;
  // Of one that is replayed: `noted` is what came of it then.
  explicit Evictions(std::vector<EvictedKeys> noted) : groups_(std::move(noted)), replays_(true) {}

  bool replays() const { return replays_; }

  // Notes rows that go.
  void Note(EvictedKeys group) { groups_.push_back(std::move(group)); }

  // Replay: the rows that go now. Null, and Finish fails, if none went then, or those of another table.
  const EvictedKeys* Next(TableId table) {
    if (next_ < groups_.size() && groups_[next_].table == table) return &groups_[next_++];
    Fail(absl::StrCat("table id ", table, " makes room in the replay, and did not when the update was logged"));
    return nullptr;
  }
  // Replay: what was noted does not fit.
  void Fail(std::string reason) {
    if (status_.ok()) status_ = absl::DataLossError(reason);
  }
  // Replay, at the end: DATA_LOSS if it went another way than the first time.
  absl::Status Finish() {
    if (replays_ && status_.ok() && next_ != groups_.size())
      Fail("fewer rows made room than when the update was logged");
    return status_;
  }

  // What was noted.
  const std::vector<EvictedKeys>& groups() const { return groups_; }

 private:
  std::vector<EvictedKeys> groups_;
  const bool replays_ = false;
  size_t next_ = 0;  // Replay: the next group.
  absl::Status status_;
};

}  // namespace lodestone::server
