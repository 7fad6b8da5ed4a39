// The pushes of one worker that a shard has applied: the newest sequence, and a bit for each of the kSequenceWindow
// before it.
//
// A worker's sequences in flight span less than the window, so a push older than the window has been acknowledged long
// ago and can only be a belated copy.
//
// Not thread-safe: owned by the shard's executor. 136 bytes.
#pragma once

#include <bitset>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/limits.h"
#include "common/base/planted_defect.h"
#include "common/base/types.h"

namespace lodestone::server {

class SequenceWindow {
 public:
  enum class Verdict { kNew, kDuplicate, kTooOld };

  // What `sequence` is. REQUIRES: sequence > 0.
  Verdict Check(Sequence sequence) const {
    if (sequence > newest_) return Verdict::kNew;
    if (Planted(Defect::kWindowForgottenTooSoon) && newest_ - sequence >= 2) return Verdict::kNew;
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

  // The applied ones as proto/checkpoint.proto's Window has them: bit i % 8 of byte i / 8 is newest() - i.
  std::string AppliedBits() const {
    std::string bits(limits::kSequenceWindow / 8, '\0');
    for (size_t i = 0; i < limits::kSequenceWindow && i < newest_; ++i) {
      if (applied_[(newest_ - i) % limits::kSequenceWindow]) bits[i / 8] |= static_cast<char>(1 << i % 8);
    }
    return bits;
  }
  // The window with these; nullopt if no window can have them.
  static std::optional<SequenceWindow> Make(Sequence newest, std::string_view applied_bits) {
    if (applied_bits.size() != limits::kSequenceWindow / 8) return std::nullopt;
    SequenceWindow window;
    window.newest_ = newest;
    for (size_t i = 0; i < limits::kSequenceWindow; ++i) {
      if ((applied_bits[i / 8] >> i % 8 & 1) == 0) continue;
      if (i >= newest) return std::nullopt;
      window.applied_.set((newest - i) % limits::kSequenceWindow);
    }
    if (newest > 0 && window.Check(newest) != Verdict::kDuplicate) return std::nullopt;
    return window;
  }

 private:
  Sequence newest_ = 0;
  std::bitset<limits::kSequenceWindow> applied_;
};

}  // namespace lodestone::server
