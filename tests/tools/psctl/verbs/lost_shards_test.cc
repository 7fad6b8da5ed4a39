#include "tools/psctl/verbs/lost_shards.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/psctl/client/fake_admin.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class LostShardsVerbTest : public TwoServersTest {
 protected:
  LostShardsVerbTest() {
    options_.address = one_.address;
    options_.servers = {0, 1};
  }
  // What it printed.
  std::string Output(int (*run)(const LostShardsOptions&), int exit_code) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(run(options_), exit_code);
    errors_ = testing::internal::GetCapturedStderr();
    return testing::internal::GetCapturedStdout();
  }
  LostShardsOptions options_;
  std::string errors_;
};

TEST_F(LostShardsVerbTest, AskTheCoordinatorWhicheverPsIsNamed) {
  EXPECT_THAT(Output(&RunPromote, 0), HasSubstr("ps 1 owns and serves 11 shards that nobody served; 3 are left"));
  EXPECT_THAT(Output(&RunAcceptLoss, 0), HasSubstr("ps 0 owns and serves 20 shards that nobody served; 0 are left"));
  EXPECT_THAT(zero_.names(), ElementsAre("promote 0", "promote 1", "accept-loss 0", "accept-loss 1"));
  EXPECT_THAT(one_.names(), IsEmpty());
  EXPECT_THAT(errors_, IsEmpty());
}

TEST_F(LostShardsVerbTest, SayWhatTheCoordinatorRefuses) {
  zero_.answer = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "ps 0 has lost no shard");
  options_.json = true;
  const auto json = nlohmann::json::parse(Output(&RunAcceptLoss, 1));
  EXPECT_THAT(errors_, HasSubstr("ps 0 has lost no shard"));
  EXPECT_THAT(json[0]["error"].get<std::string>(), HasSubstr("ps 0 has lost no shard"));
}

}  // namespace
}  // namespace lodestone::psctl
