// Plain connections to an HTTP port, for tests: bytes out, bytes in.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lodestone {

// A connection to a port of 127.0.0.1, open until this is destroyed. Not thread-safe.
class HttpConnection {
 public:
  // `receive_buffer_bytes`: what the system keeps of an answer that is not read; 0: its default.
  explicit HttpConnection(uint16_t port, int receive_buffer_bytes = 0)
      : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer_bytes > 0) {
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
    }
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~HttpConnection() {
    if (socket_ >= 0) close(socket_);
  }
  HttpConnection(HttpConnection&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), connected_(other.connected_) {}

  bool connected() const { return connected_; }
  // False if the other side takes nothing any more.
  bool Send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent < 0) return false;
      text.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }
  // Nothing more is sent.
  void EndSending() { shutdown(socket_, SHUT_WR); }
  // All that comes until the other side ends the connection.
  std::string ReadAll() {
    std::string all;
    char buffer[65536];
    for (ssize_t got; (got = recv(socket_, buffer, sizeof(buffer), 0)) > 0;) all.append(buffer, got);
    return all;
  }
  // Whether something has come, or the other side has ended the connection, within `ms`.
  bool Readable(int ms) const {
    pollfd wait = {socket_, POLLIN, 0};
    return poll(&wait, 1, ms) > 0;
  }
  // Waits until the other side has thrown the connection away, with what of its answer was not read yet.
  void AwaitReset() const {
    pollfd wait = {socket_, 0, 0};
    while (poll(&wait, 1, -1) <= 0) {
    }
  }

 private:
  int socket_;
  bool connected_ = false;
};

// What is answered to these bytes.
inline std::string AskRaw(uint16_t port, std::string_view request) {
  HttpConnection connection(port);
  EXPECT_TRUE(connection.connected());
  connection.Send(request);
  return connection.ReadAll();
}

// What is answered to a GET of `target`: "HTTP/1.1 200 OK", headers and body. `headers` are lines that end with "\r\n".
inline std::string Get(uint16_t port, std::string_view target, std::string_view headers = "") {
  return AskRaw(port,
                absl::StrCat("GET ", std::string(target), " HTTP/1.1\r\nHost: test\r\n", std::string(headers), "\r\n"));
}

// The body of an answer, and its code.
inline std::string BodyOf(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}
inline int CodeOf(const std::string& answer) {
  return answer.rfind("HTTP/1.1 ", 0) == 0 ? std::stoi(answer.substr(9, 3)) : 0;
}

// The port in "host:port".
inline uint16_t PortIn(const std::string& address) {
  return static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
}

}  // namespace lodestone
