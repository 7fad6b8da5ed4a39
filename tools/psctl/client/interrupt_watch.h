// The wish of a person to end a verb (Ctrl-C, SIGTERM, a terminal that is closed), for verbs that leave something
// behind which they have to end first.
//
// One at a time, of the thread that starts the verb; interrupted() from any thread.
#pragma once

#include <signal.h>

namespace lodestone::psctl {

class InterruptWatch {
 public:
  // From now on SIGINT, SIGTERM and SIGHUP are noted, and do not end the process.
  InterruptWatch();
  // They do what they did before.
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool interrupted() const;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction former_[3];
};

}  // namespace lodestone::psctl
