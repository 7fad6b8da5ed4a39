// The ledger of a simulation: every push has rows of its own, which it adds 1 to. A row of an acknowledged push that
// holds 0 was lost, one that holds 2 was applied twice. Also, what a shard's version was when a push was acknowledged,
// and what going back to a checkpoint has undone.
//
// Used by one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/types.h"

namespace lodestone::simulation {

struct LedgerPush {
  enum class State { kSent, kAcknowledged, kUnknown, kUndone };
  uint32_t client = 0;
  std::vector<Key> keys;
  State state = State::kSent;
};

class Ledger {
 public:
  static constexpr size_t kKeysMax = 8;

  // A push of so many rows.
  size_t Add(uint32_t client, size_t keys) {
    LedgerPush push{.client = client};
    for (size_t i = 0; i < keys; ++i) push.keys.push_back(1 + pushes_.size() * kKeysMax + i);
    pushes_.push_back(std::move(push));
    return pushes_.size() - 1;
  }
  void Acknowledge(size_t push) {
    pushes_[push].state = LedgerPush::State::kAcknowledged;
    acknowledged_.push_back(push);
  }
  void GiveUp(size_t push) { pushes_[push].state = LedgerPush::State::kUnknown; }
  // The cluster goes back to a checkpoint, and no client runs. When the checkpoint was begun `acknowledged` pushes
  // were, and stay; when it was done `sent` pushes were: later ones are undone, and each row of the others is or is
  // not.
  void GoBack(size_t acknowledged, size_t sent) {
    for (size_t push = 0; push < pushes_.size(); ++push) {
      if (push >= sent) pushes_[push].state = LedgerPush::State::kUndone;
      if (pushes_[push].state != LedgerPush::State::kUndone) pushes_[push].state = LedgerPush::State::kUnknown;
    }
    acknowledged_.resize(acknowledged);
    for (const size_t push : acknowledged_) pushes_[push].state = LedgerPush::State::kAcknowledged;
    versions_.clear();
  }
  // A push to the shard was acknowledged that made this version.
  void NoteVersion(ShardId shard, Version version) { versions_[shard] = std::max(versions_[shard], version); }

  const std::vector<LedgerPush>& pushes() const { return pushes_; }
  const std::vector<size_t>& acknowledged() const { return acknowledged_; }
  const std::map<ShardId, Version>& versions() const { return versions_; }

  // Judges what a row holds; `known`: the push was acknowledged before the row was asked for.
  void Judge(Key key, float value, bool known, const std::string& where) {
    const size_t push = (key - 1) / kKeysMax;
    const bool undone = pushes_[push].state == LedgerPush::State::kUndone;
    if (undone ? value == 0 : value == 1 || (value == 0 && !known)) return;
    Fail(absl::StrCat("push ", push, " of client ", pushes_[push].client, ", ",
                      undone  ? "undone"
                      : known ? "acknowledged"
                              : "not acknowledged",
                      ", was applied ", value, " times: row ", key, " ", where));
  }
  // The first thing that is wrong.
  void Fail(std::string what) {
    if (failure_.empty()) failure_ = std::move(what);
  }
  const std::string& failure() const { return failure_; }

 private:
  std::vector<LedgerPush> pushes_;
  std::vector<size_t> acknowledged_;
  std::map<ShardId, Version> versions_;
  std::string failure_;
};

}  // namespace lodestone::simulation
