// Something quick that is to be done after a while, for those that cannot wait themselves.
//
// Thread-safe. What is still to be done when this is destroyed is done then.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/time_source.h"

namespace lodestone::server {

class Delays {
 public:
  // `time` must outlive this.
  explicit Delays(const TimeSource* time) : time_(time), thread_([this] { Run(); }) {}
  ~Delays();
  Delays(const Delays&) = delete;
  Delays& operator=(const Delays&) = delete;

  // Calls `what` in `ms`, on the thread of this, which it must not hold up.
  void After(int64_t ms, std::function<void()> what);

  // Does what is due, or waits until it has been done. Happens by itself; for tests that move the time by hand.
  void CheckTime();

 private:
  void Run();

  const TimeSource* const time_;

  Mutex doing_mu_;  // Held while something is done; taken before mu_.
  Mutex mu_;
  CondVar changed_;
  std::multimap<int64_t, std::function<void()>> due_ ABSL_GUARDED_BY(mu_);  // By time.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone::server
