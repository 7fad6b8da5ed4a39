// Which pushes of one worker a shard has applied: the newest sequence and a bit for each of the kSequenceWindow before
// it.
//
// A worker's sequences in flight span less than the window, so whatever is older than the window has been acknowledged
// long ago and can only be a belated copy.
//
// Not thread-safe: owned by the shard's executor. 136 bytes.
#pragma once

#include <bitset>

#include "common/limits.h"
#include "common/types.h"

namespace lodestone {

class SequenceWindow {
 public:
  enum class Verdict { kNew, kDuplicate, kTooOld };

  // What `sequence` is. REQUIRES: sequence > 0.
  Verdict Check(Sequence sequence) const {
    if (sequence > newest_) return Verdict::kNew;
    if (newest_ - sequence >= limits::kSequenceWindow) return Verdict::kTooOld;
    return applied_[sequence % limits::kSequenceWindow] ? Verdict::kDuplicate : Verdict::kNew;
  }

  // Notes that `sequence` was applied. REQUIRES: Check(sequence) == kNew.
  void Mark(Sequence sequence) {
    if (sequence > newest_) {
      if (sequence - newest_ >= limits::kSequenceWindow) {
        applied_.reset();
      } else {
        for (Sequence s = newest_; s != sequence;) applied_.reset(++s % limits::kSequenceWindow);
      }
      newest_ = sequence;
    }
    applied_.set(sequence % limits::kSequenceWindow);
  }

  Sequence newest() const { return newest_; }

 private:
  Sequence newest_ = 0;
  std::bitset<limits::kSequenceWindow> applied_;
};

}  // namespace lodestone
