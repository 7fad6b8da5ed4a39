// `psctl top` in a terminal.
#include <signal.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/psctl/client/fake_admin.h"
#include "tests/tools/psctl/verbs/terminal_run.h"
#include "tools/psctl/text/style.h"

namespace lodestone::psctl {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

constexpr char kEnter[] = "\x1b[?1049h";
constexpr char kLeave[] = "\x1b[?1049l";

class TopTest : public TwoServersTest {
 protected:
  TopTest() { zero_.SetEvents(5, {"joined"}); }
  std::vector<std::string> Top(std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"top", "--address", one_.address, "--timeout", "60s"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  static size_t Widest(const std::vector<std::string>& frame) {
    size_t widest = 0;
    for (const std::string& line : frame) widest = std::max(widest, ColumnsOf(line));
    return widest;
  }
};

TEST_F(TopTest, RedrawsInPlaceAndGivesTheTerminalBackWithQ) {
  TerminalRun run(Top(), 200, 50, {"NO_COLOR=1"});
  ASSERT_TRUE(run.Await(kEnter));
  std::vector<std::string> frame = run.AwaitFrame();
  ASSERT_THAT(frame, Not(SizeIs(0)));
  EXPECT_THAT(frame[0], HasSubstr("cluster test  2 of 2 servers"));
  EXPECT_FALSE(run.HasUsualSettings()) << "keys are heard at once";
  zero_.SetEvents(5, {"joined", "checkpointed"});
  while (frame.back().find("checkpointed") == std::string::npos) {
    frame = run.AwaitFrame();
    ASSERT_THAT(frame, Not(SizeIs(0)));
  }
  run.Type("q");
  EXPECT_EQ(run.AwaitEnd(), 0);
  EXPECT_TRUE(run.Await(kLeave));
  EXPECT_TRUE(run.HasUsualSettings());
  EXPECT_THAT(run.output(), Not(HasSubstr("\x1b[1m"))) << "NO_COLOR";
}

TEST_F(TopTest, CtrlCLeavesTooAndGivesTheTerminalBack) {
  TerminalRun run(Top(), 200, 50);
  ASSERT_THAT(run.AwaitFrame(), Not(SizeIs(0)));
  run.Type("\x03");
  EXPECT_EQ(run.AwaitEnd(), 0);
  EXPECT_TRUE(run.Await(kLeave));
  EXPECT_TRUE(run.HasUsualSettings());
  EXPECT_THAT(run.output(), HasSubstr("\x1b[1mcluster test\x1b[0m")) << "a terminal has colours";
}

TEST_F(TopTest, FollowsTheSizeOfTheWindow) {
  TerminalRun run(Top(), 200, 50, {"NO_COLOR=1"});
  std::vector<std::string> frame = run.AwaitFrame();
  EXPECT_GT(Widest(frame), 60u);
  EXPECT_GT(frame.size(), 6u);
  run.Resize(60, 6);
  do {
    frame = run.AwaitFrame();
    ASSERT_THAT(frame, Not(SizeIs(0)));
  } while (frame.size() > 6 || Widest(frame) > 60);
  EXPECT_THAT(frame, SizeIs(6));
  EXPECT_EQ(Widest(frame), 60u);
}

TEST_F(TopTest, GivesTheTerminalBackWhileItIsStopped) {
  TerminalRun run(Top(), 200, 50);
  ASSERT_THAT(run.AwaitFrame(), Not(SizeIs(0)));
  run.Signal(SIGTSTP);
  ASSERT_TRUE(run.AwaitStop());
  EXPECT_TRUE(run.HasUsualSettings());
  ASSERT_TRUE(run.Await(kLeave));
  run.Signal(SIGCONT);
  ASSERT_TRUE(run.Await(kEnter));
  ASSERT_THAT(run.AwaitFrame(), Not(SizeIs(0)));
  EXPECT_FALSE(run.HasUsualSettings());
  run.Signal(SIGTERM);
  EXPECT_EQ(run.AwaitEnd(), 0);
  EXPECT_TRUE(run.HasUsualSettings());
}

TEST_F(TopTest, KeepsThePictureAndSaysSoWhenNothingAnswersAnyMore) {
  std::vector<std::string> arguments = Top();
  arguments.back() = "500ms";
  TerminalRun run(arguments, 200, 50, {"NO_COLOR=1"});
  if (run.AwaitFrame().empty()) GTEST_SKIP() << "a machine too slow for an answer in half a second";
  one_.stalls = true;
  ASSERT_TRUE(run.Await("as it was then: no ps answers at " + one_.address));
  one_.stalls = false;
  std::vector<std::string> frame;
  do {
    frame = run.AwaitFrame();
    ASSERT_THAT(frame, Not(SizeIs(0)));
  } while (testing::Value(frame, testing::Contains(HasSubstr("as it was then"))));
  run.Type("q");
  EXPECT_EQ(run.AwaitEnd(), 0);
}

TEST_F(TopTest, EndsByItselfAfterSoManyFrames) {
  TerminalRun run(Top({"--count", "1"}), 200, 50);
  EXPECT_EQ(run.AwaitEnd(), 0);
  EXPECT_THAT(run.AwaitFrame(), Not(SizeIs(0)));
  EXPECT_TRUE(run.HasUsualSettings());
}

TEST_F(TopTest, DoesNotTakeTheTerminalWhereNothingListens) {
  TerminalRun run({"top", "--address", Nowhere(), "--timeout", "60s"}, 200, 50);
  EXPECT_EQ(run.AwaitEnd(), 3);
  EXPECT_THAT(run.output(), HasSubstr("psctl top: no ps answers at "));
  EXPECT_THAT(run.output(), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace lodestone::psctl
