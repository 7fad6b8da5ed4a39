#include "common/rpc/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(LocalSocket, NamesAreAllDifferentAndGood) {
  const std::string name = DrawLocalSocket();
  EXPECT_NE(name, DrawLocalSocket());
  EXPECT_TRUE(CheckLocalSocket(name).ok()) << name;
}

TEST(LocalSocket, NothingElseIsAName) {
  const std::string good = DrawLocalSocket();
  for (const std::string& name :
       {std::string(), std::string("lodestone-"), good + "0", good.substr(1), good.substr(0, good.size() - 1) + "g",
        std::string("/run/lodestone.sock"), std::string(5000, 'a')}) {
    EXPECT_EQ(CheckLocalSocket(name).code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_FALSE(IsListeningHere(name)) << name;
  }
}

TEST(LocalSocket, ItIsKnownWhetherAProcessListens) {
  const std::string name = DrawLocalSocket();
  EXPECT_FALSE(IsListeningHere(name));
  EXPECT_TRUE(TryLocalSocket(name).ok());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_GE(fd, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
            0);
  EXPECT_EQ(TryLocalSocket(name).code(), absl::StatusCode::kUnavailable) << "it is taken";
  EXPECT_FALSE(IsListeningHere(name)) << "bound is not listening";
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_TRUE(IsListeningHere(name));
  close(fd);
  EXPECT_FALSE(IsListeningHere(name));
}

}  // namespace
}  // namespace lodestone
