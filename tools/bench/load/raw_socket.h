// Sockets without anything around them, as the limits use them.
//
// Thread safety: functions are pure but for the sockets; a SocketReader belongs to one thread.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace lodestone::bench {

enum class Transport { kTcp, kUnix };

// A listening socket and where to connect to. TCP: a free port of 127.0.0.1; Unix: an abstract name, no file.
struct Listener {
  int fd = -1;
  sockaddr_storage address{};
  socklen_t address_size = 0;
};
absl::StatusOr<Listener> Listen(Transport transport);

// A connected socket; Nagle's delay is off.
absl::StatusOr<int> ConnectTo(const Listener& listener);
// The next connection of a listening socket, Nagle's delay off; -1 after an error.
int AcceptFrom(const Listener& listener);

// Sends all of a head and what follows it in as few calls as the kernel allows. False if the connection is gone.
bool SendMessage(int fd, const void* head, size_t head_size, const void* body, size_t body_size);

// Reads whole messages with few calls: small ones several at a time, large ones straight to where they belong.
class SocketReader {
 public:
  explicit SocketReader(int fd) : fd_(fd), buffer_(kBufferBytes) {}

  // Waits for `size` bytes. False if the connection is gone.
  bool Read(void* data, size_t size);
  // Whether bytes lie here that Read has not given yet.
  bool buffered() const { return begin_ < end_; }

 private:
  static constexpr size_t kBufferBytes = 64 << 10;

  const int fd_;
  std::vector<uint8_t> buffer_;
  size_t begin_ = 0;  // Of what is left in the buffer.
  size_t end_ = 0;
};

}  // namespace lodestone::bench
