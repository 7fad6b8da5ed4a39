#include "tools/psctl/text/exit_code.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::psctl {
namespace {

using testing::HasSubstr;

TEST(ExitCodeOf, TellsWhatAScriptCanActOn) {
  EXPECT_EQ(ExitCodeOf(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(absl::NotFoundError("no such table")), 1);
  EXPECT_EQ(ExitCodeOf(absl::UnavailableError("a checkpoint is being written")), 1) << "the ps says so itself";
  EXPECT_EQ(ExitCodeOf(UnreachableError("nothing listens")), 3);
  EXPECT_EQ(ExitCodeOf(absl::DeadlineExceededError("no answer")), 4);
}

TEST(Outcome, AnUnreachablePsIsStillUnavailable) {
  EXPECT_TRUE(absl::IsUnavailable(UnreachableError("x")));
  EXPECT_TRUE(IsUnreachable(UnreachableError("x")));
  EXPECT_FALSE(IsUnreachable(absl::UnavailableError("x")));
}

TEST(Fail, NamesTheVerbAndTheReason) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(Fail("tables", UnreachableError("nothing listens")), kExitUnreachable);
  EXPECT_EQ(FailUsage("tables", "--address: none"), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "psctl tables: nothing listens\npsctl tables: --address: none\n");
}

TEST(CheckAddressFlag, WantsHostAndPort) {
  EXPECT_TRUE(CheckAddressFlag("ps0:7000").ok());
  EXPECT_TRUE(CheckAddressFlag("[::1]:7000").ok());
  EXPECT_THAT(std::string(CheckAddressFlag("ps0").message()), HasSubstr("--address: "));
}

TEST(MillisText, IsWhatATimeoutTakes) {
  EXPECT_EQ(MillisText(250), "250 ms");
  EXPECT_EQ(MillisText(1500), "1.5 s");
  EXPECT_EQ(MillisText(600'000), "600 s");
}

}  // namespace
}  // namespace lodestone::psctl
