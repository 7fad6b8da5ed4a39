#include "server/coordinator/watched_address.h"

#include <string>

#include "gtest/gtest.h"

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
