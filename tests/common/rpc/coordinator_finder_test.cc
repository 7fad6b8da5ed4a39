#include "common/rpc/coordinator_finder.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/etcd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/rpc/etcd_cluster.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

TEST(CoordinatorFinderTest, WithoutEtcdTheAddressIsFixed) {
  v1::Config config;
  config.mutable_coordinator()->set_address("host:7000");
  CoordinatorFinder finder(config);
  ASSERT_TRUE(finder.Address().ok());
  EXPECT_EQ(*finder.Address(), "host:7000");
  finder.Missed("host:7000");
  finder.Stop();
  EXPECT_EQ(*finder.Address(), "host:7000");
  EXPECT_TRUE(finder.is_fixed());
}

TEST(CoordinatorFinderTest, EtcdIsAskedUntilOneIsElectedAndWhenTheCoordinatorWasMissed) {
  const auto etcd = EtcdCluster::Start(1, absl::StrCat(std::getenv("TEST_TMPDIR"), "/finder"));
  ASSERT_TRUE(etcd.ok()) << etcd.status();
  v1::Config config;
  config.mutable_cluster()->set_name("test");
  config.mutable_coordinator()->set_address("unused:7000");
  config.mutable_coordinator()->add_etcd((*etcd)->endpoint(0));
  CoordinatorFinder finder(config);
  EXPECT_FALSE(finder.is_fixed());
  absl::Status nobody;
  do {  // A busy machine's etcd may be late.
    nobody = finder.Address().status();
  } while (absl::IsDeadlineExceeded(nobody));
  EXPECT_EQ(nobody.code(), absl::StatusCode::kUnavailable) << nobody;
  EXPECT_THAT(nobody.message(), HasSubstr("lodestone/test/coordinator"));

  EtcdClient client((*etcd)->endpoints(), 60'000);
  ASSERT_TRUE(client.PutIf({}, EtcdCoordinatorKey("other"), "ps-7:7000", 0).ok());
  ASSERT_TRUE(client.PutIf({}, EtcdCoordinatorKey("test"), "ps-1:7000", 0).ok());
  while (!finder.Address().ok()) continue;
  ASSERT_TRUE(client.PutIf({}, EtcdCoordinatorKey("test"), "ps-2:7000", 0).ok());
  EXPECT_EQ(*finder.Address(), "ps-1:7000");  // Nobody has missed it there.
  finder.Missed("ps-0:7000");
  EXPECT_EQ(*finder.Address(), "ps-1:7000");
  finder.Missed("ps-1:7000");
  while (!finder.Address().ok()) continue;
  EXPECT_EQ(*finder.Address(), "ps-2:7000");
  finder.Missed("ps-2:7000");
  finder.Stop();
  EXPECT_EQ(finder.Address().status().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace lodestone
