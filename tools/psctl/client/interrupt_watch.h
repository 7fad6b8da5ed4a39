// A watch for interrupts (SIGINT, SIGTERM, SIGHUP), for verbs that have to end something before they end.
//
// One at a time, of the thread that starts the verb; interrupted() from any thread.
#pragma once

#include <signal.h>

namespace lodestone::psctl {

class InterruptWatch {
 public:
  // From now on the first of each is noted, and does not end the process; the second does. One that is ignored stays so
  // (nohup).
  InterruptWatch();
  // The signals do what they did before.
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool interrupted() const;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction former_[3];
};

}  // namespace lodestone::psctl
