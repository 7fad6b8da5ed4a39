// One connection of an HttpServer, as cpp-httplib reads and writes it.
//
// The library limits the time of each single read and write only, and neither the number nor the size of a request's
// headers: whoever sends a byte now and then would hold a thread for ever. Here the request as a whole has to arrive,
// and the answer as a whole to be taken, within limits::kHttpTimeoutMs; after that reads and writes fail. A request
// ends after limits::kHttpRequestBytesMax, so that one that is longer is refused for what it lacks. TLS, where it is
// spoken, counts with the request.
//
// Not thread-safe. Does not own the socket, which must stay open for as long as this lives; shutting it down ends what
// waits.
#pragma once

#include <openssl/ssl.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "httplib.h"

namespace lodestone {

class HttpStream final : public httplib::Stream {
 public:
  // `tls`: what TLS is spoken with; null: none is.
  explicit HttpStream(int socket, SSL_CTX* tls = nullptr);

  // Agrees on TLS with the other side; call it first. False if they cannot, or not in time.
  bool Handshake();
  // Null without TLS.
  const SSL* tls() const { return tls_.get(); }

  // Tells the other side that the answer is over, and takes what it may still send: if that lay unread when the socket
  // is closed, the other side's system would throw the answer away.
  void Linger();

  // The library's. `read` returns 0 at the end, and both -1 after an error or when it takes too long.
  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  // Waits until the socket is ready for `events`; false if it is not by then.
  bool Await(short events, Deadline deadline) const;
  // What there is, and what goes: all that is between this and the socket. As recv and send; with EAGAIN, wanted_ is
  // what to wait for.
  ssize_t Receive(char* to, size_t size);
  ssize_t Send(const char* from, size_t size);
  // What recv or send would say, after OpenSSL has returned `result`.
  ssize_t FromTls(int result);
  // Reads some into buffer_, which is empty: as read.
  ssize_t Fill(Deadline deadline);

  const int socket_;
  const std::unique_ptr<SSL, void (*)(SSL*)> tls_;
  short wanted_ = 0;
  const Deadline read_by_;
  std::optional<Deadline> write_by_;  // From the first write on.
  std::array<char, 4096> buffer_;
  size_t from_ = 0;  // What is in buffer_ and was not read yet.
  size_t end_ = 0;
  size_t received_ = 0;  // Bytes in all.
};

}  // namespace lodestone
