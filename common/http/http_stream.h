// One connection of an HttpServer, for which no thread waits.
//
// It goes through stages: TLS is agreed on, a request arrives, its answer is sent, and what the other side may still
// send is thrown away. Advance takes it as far as it goes at once; what it needs then is polled for together with what
// others need, so that whoever is slow costs some memory and no thread. Between request and answer stands cpp-httplib,
// which reads the one from memory and writes the other there.
//
// The request as a whole has to arrive, and the answer as a whole to be taken, by a deadline of its own, which is for
// the caller to mind. A request ends after limits::kHttpRequestBytesMax, so that one that is longer is refused for what
// it lacks. TLS, where it is spoken, counts with the request.
//
// Not thread-safe. Owns the socket: closes it, and at once if the other side has not taken its answer.
#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "httplib.h"

namespace lodestone {

class HttpStream final : public httplib::Stream {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  // What is due after Advance.
  enum class Next {
    kPoll,    // Advance again, when one of `events` has come.
    kAnswer,  // The request is to be read and the answer to be written; then SendAnswer.
    kEnd,     // Nothing: it is over.
  };

  // `socket` does not block. `timeout`: for the request, and for the answer. `tls`: what TLS is spoken with; null:
  // none.
  HttpStream(int socket, std::chrono::milliseconds timeout, SSL_CTX* tls);
  ~HttpStream() override;
  HttpStream(const HttpStream&) = delete;
  HttpStream& operator=(const HttpStream&) = delete;

  Next Advance();
  // What was written goes with the next Advance.
  void SendAnswer();
  // The request ends with what has arrived.
  void EndReceiving() const;

  int fd() const { return socket_; }
  short events() const { return events_; }
  Deadline deadline() const { return deadline_; }
  // Memory of an answer that is not taken yet.
  size_t answer_bytes() const { return answer_.size(); }
  // Null without TLS.
  const SSL* tls() const { return tls_.get(); }

  // The library's. `read` returns 0 at the end of what has arrived.
  bool is_readable() const override { return read_ < request_.size(); }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& ip, int& port) const override;
  void get_local_ip_and_port(std::string& ip, int& port) const override;
  // It would refuse to serve those that are too large for `select`, which nobody calls.
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  enum class Stage { kHandshake, kRequest, kAnswer, kDrain };
  // How a stage stands.
  enum class Step { kDone, kWaits, kFailed };

  // What a call means that has moved nothing.
  static Step StepOf(ssize_t result);
  Step Handshake();
  Step ReceiveRequest();
  Step Send();
  // If what the other side sends lay unread when the socket is closed, its system would throw the answer away.
  Step Drain();
  // Whether the library can tell what to answer.
  bool IsWhole(size_t searched) const;
  // As recv and send; with EAGAIN, events_ are what to poll for.
  ssize_t Receive(char* to, size_t size);
  ssize_t SendSome(const char* from, size_t size);
  // What recv or send would say, after OpenSSL has returned `result`.
  ssize_t FromTls(int result);

  const int socket_;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<SSL, void (*)(SSL*)> tls_;
  Stage stage_;
  short events_;
  Deadline deadline_;
  std::string request_;
  size_t read_ = 0;  // By the library.
  std::string answer_;
  size_t sent_ = 0;
  size_t drained_ = 0;
  bool drained_all_ = false;
};

}  // namespace lodestone
