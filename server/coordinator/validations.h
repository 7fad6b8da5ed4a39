// The validations of a training run, as workers claim and report them: which numbers are taken, what was found, which
// was the best, and whether training ends early because nothing has been better since.
//
// Not thread-safe: part of Membership. Memory is bounded: the newest limits::kValidationsMax results are kept, and all
// metrics of those that fit kMetricsBytesMax: of the best, and then of the newest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/coordinator.pb.h"

namespace lodestone::server {

class Validations {
 public:
  // Of all metrics of results; beyond it a result has the one that it is judged by. The coordinator's state has to fit
  // limits::kEtcdStateBytesMax.
  static constexpr size_t kMetricsBytesMax = 200'000;

  // Whether the validation is the asker's: nobody has claimed it or a later one.
  bool Claim(uint64_t number);
  // Takes a result over, once however often it is sent. Returns whether it is the best so far. If that is `patience`
  // results ago (0: however long), training ends early from now on.
  bool Report(const v1::Validation& result, uint32_t patience);
  // The best validation's parameters are kept.
  void NoteKept(const v1::KeptValidation& kept);

  const v1::ValidationState& state() const { return state_; }
  // Why training ends early; empty: it does not.
  const std::string& stopped() const { return state_.stopped(); }
  // Grows with every change.
  uint64_t changes() const { return changes_; }

  // Goes on from an earlier state; another run begins.
  void Restore(const v1::ValidationState& state) {
    state_ = state;
    ShortenMetrics();
  }
  void Reset();

 private:
  void ShortenMetrics();

  v1::ValidationState state_;
  uint64_t changes_ = 0;
};

}  // namespace lodestone::server
