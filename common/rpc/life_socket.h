// A listening socket that shows that its process lives: the kernel takes connections to it for exactly as long, also
// while the process is stopped, and refuses them once it is dead (process_watch.h). Nothing is said on it, and nothing
// read.
//
// A child that was forked and runs no other program keeps it open after its parent's death, which then is not noticed.
//
// Thread-safe. The socket is closed with this object.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace lodestone {

class LifeSocket {
 public:
  // Listens on a free port of the interface from which this machine reaches `peer`, host:port. May look up a name.
  // UNAVAILABLE if there is no way there, or no socket left.
  static absl::StatusOr<std::unique_ptr<LifeSocket>> Towards(const std::string& peer);
  ~LifeSocket();
  LifeSocket(const LifeSocket&) = delete;
  LifeSocket& operator=(const LifeSocket&) = delete;

  // host:port, the host as a number.
  const std::string& address() const { return address_; }

  // Whether one may be at a loopback address of this machine: nothing refuses connections there. One whose process is
  // at the other end of a tunnel is not.
  static bool MayBeHere(const std::string& address);

 private:
  explicit LifeSocket(int fd) : fd_(fd) {}

  const int fd_;
  std::string address_;  // Constant once Towards returns it.
};

}  // namespace lodestone
