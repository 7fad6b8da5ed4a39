#include "tools/psctl/verbs/verify_live.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/psctl/client/fake_admin.h"

namespace lodestone::psctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class VerifyLiveTest : public TwoServersTest {
 protected:
  VerifyLiveTest() {
    Add(&zero_, 0, 0xabc, 0xabc);
    Add(&zero_, 2, 1, 1);
    Add(&one_, 1, 7, 7);
    options_.address = zero_.address;
  }

  static v1::VerifyReplicasResponse::ShardReplicas* Add(FakeAdmin* ps, uint32_t shard, uint64_t owner,
                                                        uint64_t follower) {
    auto* const replicas = ps->replicas.add_shards();
    replicas->set_shard(shard);
    replicas->set_version(100 + shard);
    replicas->set_owner_checksum(owner);
    replicas->set_follower_checksum(follower);
    replicas->set_follower(1);
    return replicas;
  }
  // What it prints, and its exit code.
  int Run() {
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    const int code = RunVerifyLive(options_);
    output_ = ::testing::internal::GetCapturedStdout();
    errors_ = ::testing::internal::GetCapturedStderr();
    return code;
  }

  VerifyLiveOptions options_;
  std::string output_;
  std::string errors_;
};

TEST_F(VerifyLiveTest, AllAlikeIsSuccess) {
  EXPECT_EQ(Run(), 0) << errors_;
  EXPECT_THAT(output_, Not(HasSubstr("differs")));
  EXPECT_THAT(output_, Not(HasSubstr("was not compared")));
}

TEST_F(VerifyLiveTest, NamesAShardWhoseFollowerDiffers) {
  one_.replicas.mutable_shards(0)->set_follower_checksum(8);
  EXPECT_EQ(Run(), 1);
  EXPECT_THAT(output_, HasSubstr("shard 1 differs at version 101: ps 1 holds 0000000000000007, its follower ps 1 "
                                 "0000000000000008"));
  EXPECT_THAT(output_, Not(HasSubstr("shard 0 differs")));
}

TEST_F(VerifyLiveTest, AShardWithoutAFollowerIsNoSuccess) {
  zero_.replicas.mutable_shards(1)->set_missing("no follower has caught up with it");
  EXPECT_EQ(Run(), 1);
  EXPECT_THAT(output_, HasSubstr("shard 2 of ps 0 was not compared: no follower has caught up with it"));
}

TEST_F(VerifyLiveTest, NeitherIsAServerThatDoesNotAnswer) {
  one_.answer = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "cluster.replicas is 1");
  EXPECT_EQ(Run(), 1);
  EXPECT_THAT(errors_, HasSubstr("ps 1: the ps at " + one_.address + ": cluster.replicas is 1"));
}

TEST_F(VerifyLiveTest, TellsTheSameAsJson) {
  options_.json = true;
  zero_.replicas.mutable_shards(0)->set_follower_checksum(1);
  EXPECT_EQ(Run(), 1);
  const auto all = nlohmann::json::parse(output_);
  EXPECT_EQ(all["servers"].size(), 2u);
  const auto& shard = all["servers"][0]["shards"][0];
  EXPECT_EQ(shard["equal"], false);
  EXPECT_EQ(shard["owner_checksum"], "0000000000000abc");
  EXPECT_EQ(all["servers"][1]["shards"][0]["equal"], true);
}

}  // namespace
}  // namespace lodestone::psctl
