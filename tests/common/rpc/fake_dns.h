// A name server on this machine, for tests of peers that come back under another address.
//
// Thread-safe.
#pragma once

#include <string>
#include <thread>

#include "common/base/mutex.h"

namespace lodestone {

class FakeDns {
 public:
  // Answers from now on, on a port of 127.0.0.1: every name stands for `address`, an IPv4 number.
  explicit FakeDns(const std::string& address);
  ~FakeDns();
  FakeDns(const FakeDns&) = delete;
  FakeDns& operator=(const FakeDns&) = delete;

  // The name `host:port`, to be looked up here, as gRPC's channels take it.
  std::string Target(const std::string& host_port) const;

  // From now on names stand for `address`.
  void Move(const std::string& address);

 private:
  void Run();
  // The answer to a question as it came; empty if that is none.
  std::string AnswerTo(const std::string& question);

  const int socket_;
  int port_ = 0;

  Mutex mu_;
  std::string address_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // Last: it uses everything above.
};

}  // namespace lodestone
