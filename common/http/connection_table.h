// The open connections of an HTTP port, each with a deadline: resets those that are too slow or too many.
//
// A request has to arrive, and its answer to be taken, within `timeout` each. When there are more than
// `connections_max`, or more than `answer_bytes_max` of answers that wait to be taken, the oldest are reset first. A
// connection whose request is being handled has no deadline, and is not reset.
//
// Thread-safe. Owns no socket, and only shuts down those that were added and not removed yet.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <thread>

#include "common/base/mutex.h"

namespace lodestone {

class ConnectionTable {
 public:
  struct Limits {
    std::chrono::milliseconds timeout;
    size_t connections_max;
    size_t answer_bytes_max;  // Of more than one connection.
  };
  explicit ConnectionTable(const Limits& limits);
  ~ConnectionTable();
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;

  // A connection was accepted; it is about to be closed.
  void Add(int socket);
  void Remove(int socket);

  // Its request has arrived. False after FinishAnswers has begun: the request is not to be handled.
  bool BeginAnswer(int socket);
  // The answer is being sent; it was sent, or given up.
  void SendAnswer(int socket, size_t bytes);
  void EndAnswer(int socket);

  // Admits no further requests, and waits until every answer that was begun has ended.
  void FinishAnswers();

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Connection {
    Time deadline;
    size_t answer_bytes = 0;
  };
  using Connections = std::map<int, Connection>;

  // Resets connections that are late, until the end.
  void Run();
  void ResetLate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ResetOldest(bool with_answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The socket is closed by its owner, which sees that it ended.
  void Reset(Connections::iterator connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Limits limits_;

  Mutex mu_;
  CondVar changed_;
  Connections open_ ABSL_GUARDED_BY(mu_);  // By socket, without those that were reset.
  size_t answering_ ABSL_GUARDED_BY(mu_) = 0;
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone
