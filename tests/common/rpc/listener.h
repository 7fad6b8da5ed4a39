// The listening socket of a process that a test has live and die.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace lodestone {

// The sockets of a process that listens: what the kernel does with them when it dies is what Die does.
class Listener {
 public:
  // `everywhere`: at all addresses of this machine, not at the first loopback one alone.
  explicit Listener(int family = AF_INET, int port = 0, bool everywhere = false)
      : family_(family), fd_(socket(family, SOCK_STREAM, 0)) {
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_storage address{};
    auto* const v4 = reinterpret_cast<sockaddr_in*>(&address);
    auto* const v6 = reinterpret_cast<sockaddr_in6*>(&address);
    address.ss_family = static_cast<sa_family_t>(family);
    if (family == AF_INET) {
      v4->sin_addr.s_addr = htonl(everywhere ? INADDR_ANY : INADDR_LOOPBACK);
      v4->sin_port = htons(static_cast<uint16_t>(port));
    } else {
      v6->sin6_addr = in6addr_loopback;
      v6->sin6_port = htons(static_cast<uint16_t>(port));
    }
    socklen_t size = family == AF_INET ? sizeof(*v4) : sizeof(*v6);
    listens_ = bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(fd_, kBacklog) == 0 &&
               getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    port_ = ntohs(family == AF_INET ? v4->sin_port : v6->sin6_port);
  }
  ~Listener() { Die(); }

  bool listens() const { return listens_; }
  int port() const { return port_; }
  std::string address() const { return absl::StrCat(family_ == AF_INET ? "127.0.0.1:" : "[::1]:", port_); }
  // Takes the next connection; false if none comes.
  bool Accept() {
    pollfd wait{fd_, POLLIN, 0};
    if (poll(&wait, 1, kAcceptMs) != 1) return false;
    taken_.push_back(accept(fd_, nullptr, nullptr));
    return taken_.back() >= 0;
  }
  // Closes the connections that it took.
  void HangUp() {
    for (const int fd : std::exchange(taken_, {})) close(fd);
  }
  void Die() {
    HangUp();
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }

 private:
  static constexpr int kBacklog = 128;
  static constexpr int kAcceptMs = 60'000;  // What is waited for comes at once, or the test fails.

  const int family_;
  int fd_;
  bool listens_ = false;
  int port_ = 0;
  std::vector<int> taken_;
};

}  // namespace lodestone
