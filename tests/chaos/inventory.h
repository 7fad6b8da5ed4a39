// Pulls everything that the servers of a chaos run hold.
//
// Thread safety: an object belongs to one thread; the pulling is done by another one.
#pragma once

#include <cstdint>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "proto/config.pb.h"
#include "tests/chaos/ledger.h"
#include "tests/chaos/workload.h"

namespace lodestone::chaos {

class Inventory {
 public:
  // Begins, by a client of its own. `workload` must outlive this. Pulls until two pulls in a row are the same.
  Inventory(const v1::Config& config, const Workload* workload, const Ledger& ledger);
  // Waits for the end: config's time limits bound it.
  ~Inventory();
  Inventory(const Inventory&) = delete;
  Inventory& operator=(const Inventory&) = delete;

  bool done() const;
  // REQUIRES: done(). Once.
  absl::StatusOr<Held> Take();

 private:
  absl::StatusOr<Held> Pull() const;

  const v1::Config config_;
  const Workload* const workload_;
  const std::vector<Key> rows_;
  const std::vector<Key> adagrad_;
  const std::vector<Key> digits_;

  mutable Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::StatusOr<Held> held_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone::chaos
