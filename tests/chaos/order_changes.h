// An operator that changes the order of steps (psctl set consistency=…) while workers train, by a seed. It may die in
// the middle, or be stopped for longer than a pause of training outlives it, and then it goes on. What was not done, or
// only in part, it does again until it is.
//
// Single-threaded, as PsCluster. The process ends with this object.
#pragma once

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone::chaos {

class OrderChanges {
 public:
  struct Options {
    std::string psctl_binary;
    std::string coordinator;  // Its address.
    std::string folder;       // For operator.log.
    std::string tables;       // With commas.
  };
  explicit OrderChanges(Options options);

  // An order that is to be set, unless one is being. What becomes of the operator is a function of `random`.
  void Want(uint64_t random);
  // Does what is due; to be called often. `may_begin`: not only what was begun. INTERNAL if an order could not be set
  // for a long time of that; the error of a program that cannot be run.
  absl::Status Tick(bool may_begin);
  // The operator that is at work is interrupted: it may wait for a worker that does not come. What it was to set is
  // wanted still.
  void Interrupt();
  // No operator is at work.
  bool idle() const { return psctl_ == nullptr; }
  // The last order that was wanted is that of all tables.
  bool settled() const { return wanted_.empty(); }

  // Orders that were set, and operators that were killed, or stopped, meanwhile.
  uint64_t set() const { return set_; }
  uint64_t killed() const { return killed_; }
  uint64_t stopped() const { return stopped_; }

 private:
  absl::Status Start();
  // The operator dies, stops or goes on, if it is time.
  void Disturb();

  const Options options_;
  std::ofstream log_;
  std::string wanted_;     // Empty: it is settled.
  int64_t tried_ms_ = 0;   // For how long operators might have set it.
  int64_t ticked_ms_ = 0;  // When Tick was called last.
  std::unique_ptr<psctl::Child> psctl_;
  int64_t next_ms_ = 0;       // When an operator begins again.
  int disturbance_ = 0;       // A signal that it gets; 0: none.
  int64_t due_ms_ = 0;        // When.
  int64_t resume_ms_ = 0;     // When it goes on after SIGSTOP; 0: it is not stopped.
  bool interrupted_ = false;  // It was told to end.
  uint64_t random_ = 0;
  uint64_t set_ = 0, killed_ = 0, stopped_ = 0;
};

}  // namespace lodestone::chaos
