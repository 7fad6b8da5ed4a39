#include "tools/psctl/verbs/why.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/psctl/client/fake_admin.h"
#include "tests/tools/psctl/verbs/psctl_call.h"

namespace lodestone::psctl {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// A worker whose push waits for ps 1, which waits for its disk.
class WhyTest : public TwoServersTest {
 protected:
  WhyTest() {
    v1::MemberStatus* const worker = zero_.cluster.add_workers();
    worker->set_index(4);
    worker->set_alive(true);
    worker->mutable_progress()->set_phase(v1::PHASE_TRAINING);
    v1::StageTime* const stage = worker->add_stages();
    stage->set_stage("compute");
    stage->set_seconds(0.5);
    v1::WaitStatus* const wait = worker->mutable_progress()->add_waits();
    wait->set_call("push");
    wait->set_sequence(9);
    wait->set_seconds(2);
    wait->add_targets()->set_kind(v1::WaitTarget::SERVER);
    wait->mutable_targets(0)->set_index(1);
    wait->mutable_targets(0)->add_shards(3);
    v1::WaitStatus* const disk = one_.status.add_waits();
    disk->set_what("a write");
    disk->set_seconds(1.5);
    disk->add_targets()->set_kind(v1::WaitTarget::DISK);
  }
  PsctlCall Call(const std::string& address, bool json = false) const {
    std::vector<std::string> arguments = {"why", "--address", address, "--timeout", "60s"};
    if (json) arguments.push_back("--json");
    return PsctlCall(arguments);
  }
};

TEST_F(WhyTest, FollowsAWaitByWhatEachPsSaysNow) {
  const PsctlCall call = Call(one_.address);
  EXPECT_EQ(call.exit_code, 0) << call.errors;
  EXPECT_EQ(call.output,
            "worker 4's push 9 waits for shard 3 on ps 1, which waits for its disk: a write, since 1.5 s\n"
            "  steps of worker  compute\n"
            "                4    100 %\n");
}

TEST_F(WhyTest, AsJsonItHasLinksRootsAndStages) {
  const PsctlCall call = Call(zero_.address, true);
  EXPECT_EQ(call.exit_code, 0) << call.errors;
  const nlohmann::json json = nlohmann::json::parse(call.output);
  ASSERT_EQ(json["why"].size(), 1u);
  EXPECT_EQ(json["why"][0]["root"], "ROOT_THING");
  ASSERT_EQ(json["why"][0]["links"].size(), 2u);
  EXPECT_EQ(json["why"][0]["links"][0]["sequence"], 9);
  EXPECT_EQ(json["why"][0]["links"][1]["waiter"]["kind"], "SERVER");
  EXPECT_TRUE(json["slow"].empty());
  EXPECT_EQ(json["workers"][0]["stages"]["compute"], 0.5);
}

TEST_F(WhyTest, NamesSlowAndHotShards) {
  v1::SlowShard* const slow = zero_.cluster.add_slow_shards();
  slow->set_shard(9);
  slow->set_text("shard 9 on ps 0 takes 25 % of the time that pushes take");
  v1::HotShard* const hot = zero_.cluster.add_hot_shards();
  hot->set_shard(3);
  hot->set_text("shard 3 on ps 1 takes 97 % of the bytes pushed");
  EXPECT_THAT(Call(one_.address).output, HasSubstr("\nslow: shard 9 on ps 0 takes 25 % of the time that pushes take\n"
                                                   "hot: shard 3 on ps 1 takes 97 % of the bytes pushed\n"));
  const nlohmann::json json = nlohmann::json::parse(Call(zero_.address, true).output);
  ASSERT_EQ(json["hot_shards"].size(), 1u);
  EXPECT_EQ(json["hot_shards"][0]["shard"], 3);
  ASSERT_EQ(json["slow_shards"].size(), 1u);
  EXPECT_EQ(json["slow_shards"][0]["shard"], 9);
}

TEST_F(WhyTest, APsThatDoesNotAnswerIsTheRootAndMakesTheAnswerIncomplete) {
  one_.status_answer = grpc::Status(grpc::StatusCode::INTERNAL, "no words");
  const PsctlCall call = Call(zero_.address);
  EXPECT_EQ(call.exit_code, 1);
  EXPECT_THAT(call.errors, HasSubstr("psctl why: ps 1: "));
  EXPECT_THAT(call.output,
              HasSubstr("worker 4's push 9 waits for shard 3 on ps 1, which does not answer, last heard of"));
}

TEST_F(WhyTest, WithoutACoordinatorWhatOnePsKnowsIsShown) {
  one_.coordinator = Nowhere();
  const PsctlCall call = Call(one_.address);
  EXPECT_EQ(call.exit_code, 1);
  EXPECT_THAT(call.errors, HasSubstr("psctl why: only the ps at"));
  EXPECT_THAT(call.output, HasSubstr("ps 1 waits for its disk: a write, since 1.5 s\n"));
}

TEST_F(WhyTest, SaysThatNothingWaits) {
  one_.status.clear_waits();
  zero_.cluster.clear_workers();
  const PsctlCall call = Call(zero_.address);
  EXPECT_EQ(call.exit_code, 0) << call.errors;
  EXPECT_EQ(call.output, "nothing waits\n");
  EXPECT_THAT(call.errors, IsEmpty());
}

TEST_F(WhyTest, AnAddressThatIsNoneIsAMistakeInUse) { EXPECT_EQ(Call("nowhere").exit_code, 2); }

}  // namespace
}  // namespace lodestone::psctl
