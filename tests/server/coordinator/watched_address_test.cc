#include "server/coordinator/watched_address.h"

#include <string>

#include "common/rpc/life_socket.h"
#include "gtest/gtest.h"
#include "tests/common/rpc/reserved_port.h"

namespace lodestone::server {
namespace {

std::string Watched(const std::string& watched_at, const std::string& peer, v1::Role role = v1::ROLE_WORKER) {
  v1::JoinRequest request;
  request.set_role(role);
  request.set_watched_at(watched_at);
  return WatchedAddress(request, peer);
}

TEST(WatchedAddressTest, IsWhatTheWorkerSaysIfItIsOfTheHostThatItCallsFrom) {
  EXPECT_EQ(Watched("10.0.0.7:4711", "ipv4:10.0.0.7:51234"), "10.0.0.7:4711");
  EXPECT_EQ(Watched("[fd00::7]:4711", "ipv6:[fd00::7]:51234"), "[fd00::7]:4711");
  EXPECT_EQ(Watched("[fd00::7]:4711", "ipv6:%5Bfd00::7%5D:51234"), "[fd00::7]:4711") << "as gRPC writes it";
}

TEST(WatchedAddressTest, BehindATranslationOfAddressesNothingIsWatched) {
  EXPECT_EQ(Watched("172.17.0.2:4711", "ipv4:10.0.0.7:51234"), "");
  EXPECT_EQ(Watched("127.0.0.1:4711", "unix:@lodestone"), "");
}

// Regression: the worker was taken for dead once its coordinator had been started again.
TEST(WatchedAddressTest, AWorkerAtTheOtherEndOfATunnelIsNotWatched) {
  const auto life = LifeSocket::Towards("127.0.0.1:1");
  ASSERT_TRUE(life.ok()) << life.status();
  EXPECT_EQ(Watched((*life)->address(), "ipv4:127.0.0.1:51234"), (*life)->address());
  const ReservedPort nobody;
  EXPECT_EQ(Watched(nobody.address(), "ipv4:127.0.0.1:51234"), "");
}

TEST(WatchedAddressTest, WhatIsNoAddressIsNotWatched) {
  for (const char* bad : {"", "10.0.0.7", "10.0.0.7:0", ":4711", "10.0.0.7:99999"}) {
    EXPECT_EQ(Watched(bad, "ipv4:10.0.0.7:51234"), "") << bad;
  }
  EXPECT_EQ(Watched("10.0.0.7:4711", ""), "");
}

TEST(WatchedAddressTest, APsIsWatchedWhereItServes) {
  EXPECT_EQ(Watched("10.0.0.7:4711", "ipv4:10.0.0.7:51234", v1::ROLE_SERVER), "");
}

}  // namespace
}  // namespace lodestone::server
