#include "common/base/host_port.h"

#include <string>
#include <tuple>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(HostPort, TakesNamesAndNumbersApart) {
  for (const auto& [text, host, port] : {std::tuple<std::string, std::string, int>{"localhost:7000", "localhost", 7000},
                                         {"10.0.0.7:0", "10.0.0.7", 0},
                                         {"ps-0.ps_svc.example.org:65535", "ps-0.ps_svc.example.org", 65535},
                                         {"[::1]:7000", "::1", 7000},
                                         {"[fe80::1%eth0]:1", "fe80::1%eth0", 1},
                                         {":7000", "", 7000},
                                         {"*:7000", "*", 7000}}) {
    const absl::StatusOr<HostPort> address = ParseHostPort(text);
    ASSERT_TRUE(address.ok()) << address.status();
    EXPECT_EQ(address->host, host);
    EXPECT_EQ(address->port, port);
    EXPECT_EQ(FormatHostPort(*address), text);
  }
}

TEST(HostPort, RefusesWhatIsNoAddress) {
  for (const std::string text : {"",
                                 "localhost",
                                 "7000",
                                 "localhost:",
                                 "localhost:x",
                                 "localhost:-1",
                                 "localhost:+1",
                                 "localhost:65536",
                                 "localhost:99999999999",
                                 "localhost: 1",
                                 "::1:7000",
                                 "::1",
                                 "[::1]",
                                 "[::1:7000",
                                 "[]:7000",
                                 "[localhost]:7000",
                                 "a b:1",
                                 "a/b:1",
                                 "http://a:1",
                                 "a:1:2",
                                 "[",
                                 "[]",
                                 "]:1",
                                 "[:1"}) {
    const absl::StatusOr<HostPort> address = ParseHostPort(text);
    EXPECT_FALSE(address.ok()) << text;
    EXPECT_NE(address.status().message().find("`" + text + "` is not host:port"), std::string::npos)
        << address.status();
  }
  EXPECT_FALSE(ParseHostPort(std::string(1 << 20, 'x') + ":1").ok());
}

TEST(HostPort, AUrlIsAnsweredWithWhatToLeaveOut) {
  const absl::StatusOr<HostPort> address = ParseHostPort("http://127.0.0.1:7080/");
  EXPECT_NE(address.status().message().find("leave out `http://`"), std::string::npos) << address.status();
}

TEST(HostPort, KnowsHostsThatStandForAllInterfaces) {
  for (const char* const host : {"", "*", "0.0.0.0", "::", "0:0:0:0:0:0:0:0"}) EXPECT_TRUE(IsWildcard(host)) << host;
  for (const char* const host : {"localhost", "127.0.0.1", "::1", "0.0.0.1"}) EXPECT_FALSE(IsWildcard(host)) << host;
}

TEST(HostPort, KnowsHostsThatOnlyThisMachineCanConnectTo) {
  for (const char* const host : {"localhost", "127.0.0.1", "127.8.9.10", "::1"}) EXPECT_TRUE(IsLoopback(host)) << host;
  for (const char* const host :
       {"", "*", "0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "localhost.example", "::2", "ps0"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

}  // namespace
}  // namespace lodestone
