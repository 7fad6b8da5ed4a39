#include "server/listen.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

TEST(Listen, AWildcardNeedsAnAddressToTellOthers) {
  for (const char* listen : {"0.0.0.0:7000", "[::]:7000", "0.0.0.0:0"}) {
    const absl::Status status = CheckAddresses(listen, "");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << listen;
    EXPECT_THAT(std::string(status.message()), HasSubstr("set server.advertise"));
    EXPECT_TRUE(CheckAddresses(listen, "10.0.0.7:7000").ok());
  }
  EXPECT_TRUE(CheckAddresses("127.0.0.1:0", "").ok());
  EXPECT_THAT(std::string(CheckAddresses("0.0.0.0:7000", "0.0.0.0:7000").message()), HasSubstr("server.advertise"));
}

TEST(Listen, MalformedAddressesAreNamed) {
  EXPECT_THAT(std::string(CheckAddresses("localhost", "").message()), HasSubstr("server.listen"));
  EXPECT_THAT(std::string(CheckAddresses("localhost:1", "x:99999").message()), HasSubstr("server.advertise"));
}

TEST(Listen, PortZeroStandsForTheBoundPort) {
  EXPECT_EQ(AdvertisedAddress("127.0.0.1:0", "", 4000), "127.0.0.1:4000");
  EXPECT_EQ(AdvertisedAddress("0.0.0.0:0", "node7:0", 4000), "node7:4000");
  EXPECT_EQ(AdvertisedAddress("0.0.0.0:0", "node7:7000", 4000), "node7:7000");
  EXPECT_EQ(AdvertisedAddress("[::1]:0", "", 4000), "[::1]:4000");
}

TEST(Listen, ATakenPortIsAnErrorThatNamesAddressAndReason) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(fd, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string taken = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  const absl::Status status = CheckCanBind(taken);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "cannot listen on " + taken + ": Address already in use");
  close(fd);
  EXPECT_TRUE(CheckCanBind(taken).ok());
}

TEST(Listen, AnAddressOfAnotherMachineIsAnError) {
  EXPECT_THAT(std::string(CheckCanBind("192.0.2.1:0").message()), HasSubstr("cannot listen on 192.0.2.1:0"));
}

}  // namespace
}  // namespace lodestone::server
