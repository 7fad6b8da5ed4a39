#include "common/http/connection_table.h"

#include <sys/socket.h>

#include <algorithm>
#include <iterator>

namespace lodestone {
namespace {

constexpr std::chrono::hours kWaitMax(1);

}  // namespace

ConnectionTable::ConnectionTable(const Limits& limits) : limits_(limits), thread_([this] { Run(); }) {}

ConnectionTable::~ConnectionTable() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void ConnectionTable::Add(int socket) {
  MutexLock lock(&mu_);
  open_[socket].deadline = std::chrono::steady_clock::now() + limits_.timeout;
  if (open_.size() > limits_.connections_max) ResetOldest(/*with_answer=*/false);
  changed_.NotifyAll();
}

void ConnectionTable::Remove(int socket) {
  MutexLock lock(&mu_);
  open_.erase(socket);
}

bool ConnectionTable::BeginAnswer(int socket) {
  MutexLock lock(&mu_);
  if (finishing_) return false;
  ++answering_;
  if (const auto found = open_.find(socket); found != open_.end()) found->second.deadline = Time::max();
  return true;
}

void ConnectionTable::SendAnswer(int socket, size_t bytes) {
  MutexLock lock(&mu_);
  const auto found = open_.find(socket);
  if (found == open_.end()) return;
  found->second.deadline = std::chrono::steady_clock::now() + limits_.timeout;
  found->second.answer_bytes = bytes;
  size_t waiting = 0, waiting_bytes = 0;
  for (const auto& [other, connection] : open_) {
    waiting += connection.answer_bytes > 0;
    waiting_bytes += connection.answer_bytes;
  }
  for (; waiting > 1 && waiting_bytes > limits_.answer_bytes_max; --waiting) {
    ResetOldest(/*with_answer=*/true);
    waiting_bytes = 0;
    for (const auto& [other, connection] : open_) waiting_bytes += connection.answer_bytes;
  }
  changed_.NotifyAll();
}

void ConnectionTable::EndAnswer(int socket) {
  MutexLock lock(&mu_);
  --answering_;
  if (const auto found = open_.find(socket); found != open_.end()) found->second.answer_bytes = 0;
  changed_.NotifyAll();
}

void ConnectionTable::FinishAnswers() {
  MutexLock lock(&mu_);
  finishing_ = true;
  while (answering_ > 0) changed_.Wait(&mu_);
}

void ConnectionTable::Run() {
  MutexLock lock(&mu_);
  while (!stopping_) {
    ResetLate();
    Time until = std::chrono::steady_clock::now() + kWaitMax;
    for (const auto& [socket, connection] : open_) until = std::min(until, connection.deadline);
    changed_.WaitUntil(&mu_, until);
  }
}

void ConnectionTable::ResetLate() {
  const Time now = std::chrono::steady_clock::now();
  for (auto at = open_.begin(); at != open_.end();) {
    const auto next = std::next(at);
    if (at->second.deadline <= now) Reset(at);
    at = next;
  }
}

void ConnectionTable::ResetOldest(bool with_answer) {
  auto oldest = open_.end();
  for (auto at = open_.begin(); at != open_.end(); ++at) {
    if (with_answer ? at->second.answer_bytes == 0 : at->second.deadline == Time::max()) continue;
    if (oldest == open_.end() || at->second.deadline < oldest->second.deadline) oldest = at;
  }
  if (oldest != open_.end()) Reset(oldest);
}

void ConnectionTable::Reset(Connections::iterator connection) {
  // Otherwise the system would keep what it has of the answer until the other side takes it.
  const linger at_once = {1, 0};
  setsockopt(connection->first, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  shutdown(connection->first, SHUT_RDWR);
  open_.erase(connection);
}

}  // namespace lodestone
