#include "common/rpc/life_socket.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "common/base/host_port.h"
#include "common/rpc/process_watch.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(LifeSocketTest, ListensOnTheInterfaceThatLeadsToThePeer) {
  const auto life = LifeSocket::Towards("localhost:7000");
  ASSERT_TRUE(life.ok()) << life.status();
  const absl::StatusOr<HostPort> address = ParseHostPort((*life)->address());
  ASSERT_TRUE(address.ok()) << address.status();
  EXPECT_TRUE(IsLoopback(address->host)) << (*life)->address();
  EXPECT_GT(address->port, 0);
}

TEST(LifeSocketTest, AnAddressThatCannotBeReachedIsAnError) {
  EXPECT_FALSE(LifeSocket::Towards("no port").ok());
  EXPECT_FALSE(LifeSocket::Towards("does-not-exist.invalid:1").ok());
}

// A process of its own with a life socket, at `address`, until it is killed.
pid_t StartLife(std::string* address) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t pid = fork();
  if (pid == 0) {
    const auto life = LifeSocket::Towards("127.0.0.1:7000");
    const std::string said = life.ok() ? (*life)->address() : "";
    if (write(ends[1], said.data(), said.size()) < 0) _exit(1);
    close(ends[1]);
    for (;;) pause();
  }
  close(ends[1]);
  char read_bytes[64];
  for (ssize_t n = 0; (n = read(ends[0], read_bytes, sizeof(read_bytes))) > 0;) address->append(read_bytes, n);
  close(ends[0]);
  return pid;
}

// Whether a connection to `address`, of this machine, is established.
bool IsConnected(const std::string& address) {
  const absl::StatusOr<HostPort> where = ParseHostPort(address);
  if (!where.ok()) return false;
  const std::string to = absl::StrFormat(":%04X 01 ", where->port);  // Its remote end, and the state ESTABLISHED.
  std::ifstream connections("/proc/net/tcp");
  for (std::string line; std::getline(connections, line);) {
    if (line.find(to) != std::string::npos) return true;
  }
  return false;
}

TEST(LifeSocketTest, AWatchSeesTheDeathOfItsProcessAndNotThatItIsStopped) {
  std::string dies_at, stopped_at;
  const pid_t dies = StartLife(&dies_at), stopped = StartLife(&stopped_at);
  ASSERT_GT(dies, 0);
  ASSERT_GT(stopped, 0);
  absl::Notification first;
  std::vector<uint64_t> gone;
  {
    ProcessWatch watch([&](std::span<ProcessWatch::Gone> told) {
      for (const ProcessWatch::Gone& one : told) gone.push_back(one.process.life);
      if (!first.HasBeenNotified()) first.Notify();
    });
    kill(stopped, SIGSTOP);
    watch.Watch({{1, dies_at}, {2, stopped_at}});
    while (!IsConnected(dies_at) || !IsConnected(stopped_at)) {
    }
    kill(dies, SIGKILL);
    first.WaitForNotification();
  }
  EXPECT_EQ(gone, std::vector<uint64_t>{1});
  for (const pid_t pid : {dies, stopped}) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

}  // namespace
}  // namespace lodestone
