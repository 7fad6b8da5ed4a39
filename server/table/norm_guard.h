// The refusal of pushes whose gradients are far larger than those of one table's pushes before them.
//
// What is compared is the root mean square of a push's gradients, so that messages of different lengths can be: the
// running one is an exponential mean of the squares over the pushes that were taken.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "common/base/mutex.h"

namespace lodestone::server {

class NormGuard {
 public:
  static constexpr uint64_t kPushesUnjudged = 64;  // Of a fresh guard.
  static constexpr uint64_t kPushesRemembered = 256;

  // `norm_max_factor`: see proto/table.proto, Guard. Unless it is above 0 the guard is off, and not to be asked.
  explicit NormGuard(float norm_max_factor) : norm_max_factor_(norm_max_factor) {}
  // The factor from now on; what is usual stays known.
  void SetFactor(float norm_max_factor) { norm_max_factor_.store(norm_max_factor, std::memory_order_relaxed); }
  bool on() const { return norm_max_factor_.load(std::memory_order_relaxed) > 0; }

  // OUT_OF_RANGE, naming `table`, if a push with this mean square is not to be taken.
  absl::Status Judge(std::string_view table, double mean_square) const;
  // Notes that it was taken.
  void Take(double mean_square);

 private:
  std::atomic<double> norm_max_factor_;

  mutable Mutex mu_;
  uint64_t taken_ ABSL_GUARDED_BY(mu_) = 0;
  double mean_square_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lodestone::server
