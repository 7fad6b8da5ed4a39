#include "tests/chaos/socket_owners.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "common/base/check.h"
#include "gtest/gtest.h"

namespace lodestone::chaos {
namespace {

// A listening socket and a connection to it from this process.
class SocketOwnersTest : public testing::Test {
 protected:
  void SetUp() override {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    client_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    LODESTONE_CHECK(bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    LODESTONE_CHECK(listen(listener_, 1) == 0);
    to_ = PortOf(listener_, &address);
    LODESTONE_CHECK(connect(client_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    sockaddr_in local{};
    port_ = PortOf(client_, &local);
  }
  void TearDown() override {
    close(client_);
    close(listener_);
  }

  static int PortOf(int fd, sockaddr_in* address) {
    socklen_t size = sizeof(*address);
    LODESTONE_CHECK(getsockname(fd, reinterpret_cast<sockaddr*>(address), &size) == 0);
    return ntohs(address->sin_port);
  }

  int listener_ = -1;
  int client_ = -1;
  int port_ = 0;
  int to_ = 0;
  SocketOwners owners_;
};

TEST_F(SocketOwnersTest, KnowsWhoseEndAConnectionIs) {
  EXPECT_EQ(owners_.NameOf(port_, to_), std::nullopt);
  owners_.Add(getpid(), 5);
  EXPECT_EQ(owners_.NameOf(port_, to_), 5);
  EXPECT_EQ(owners_.NameOf(to_, port_ + 1), std::nullopt);
  owners_.Remove(getpid());
  EXPECT_EQ(owners_.NameOf(port_, to_), std::nullopt);
}

TEST_F(SocketOwnersTest, FindsTheConnectionOfAnotherProcess) {
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  close(client_);  // The child has it alone now.
  client_ = -1;
  owners_.Add(getpid(), 5);
  owners_.Add(child, 6);
  EXPECT_EQ(owners_.NameOf(port_, to_), 6);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(owners_.NameOf(port_, to_), std::nullopt);
}

}  // namespace
}  // namespace lodestone::chaos
