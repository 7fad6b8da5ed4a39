#include "tools/psctl/text/style.h"

#include <stdlib.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace lodestone::psctl {
namespace {

// Whatever the test's own environment says.
class ColorTest : public testing::Test {
 protected:
  ColorTest() { unsetenv("NO_COLOR"); }
  ~ColorTest() override {
    unsetenv("NO_COLOR");
    SetColorMode(ColorMode::kAuto);
  }
};

TEST_F(ColorTest, APipeHasColoursOnlyIfToldTo) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(WantsColor(ends[1]));
  SetColorMode(ColorMode::kAlways);
  EXPECT_TRUE(WantsColor(ends[1]));
  SetColorMode(ColorMode::kNever);
  EXPECT_FALSE(WantsColor(ends[1]));
  for (const int end : ends) close(end);
}

TEST_F(ColorTest, NoColorForbidsThemUnlessTheFlagAsksForThem) {
  EXPECT_FALSE(ForbidsColor());
  setenv("NO_COLOR", "", 1);
  EXPECT_FALSE(ForbidsColor()) << "empty is as if it were not there";
  setenv("NO_COLOR", "1", 1);
  EXPECT_TRUE(ForbidsColor());
  SetColorMode(ColorMode::kAlways);
  EXPECT_FALSE(ForbidsColor());
  EXPECT_TRUE(WantsColor(STDOUT_FILENO));
}

TEST(Painter, PaintsOnlyIfItMay) {
  EXPECT_EQ(Painter(true)(Style::kBad, "dead"), "\x1b[31mdead\x1b[0m");
  EXPECT_EQ(Painter(true)(Style::kPlain, "alive"), "alive");
  EXPECT_EQ(Painter(true)(Style::kBad, ""), "");
  EXPECT_EQ(Painter(false)(Style::kBad, "dead"), "dead");
}

TEST(Printable, LeavesNothingThatATerminalWouldObey) {
  EXPECT_EQ(Printable("host:4711"), "host:4711");
  EXPECT_EQ(Printable("\x1b]0;title\x07\x1b[2J"), "?]0;title??[2J");
  EXPECT_EQ(Printable("two\nlines\tand\rmore\x7f"), "two lines and?more?");
  EXPECT_EQ(Printable("\xc2\x9b"
                      "31m"),
            "?31m")
      << "the C1 form of the same";
  EXPECT_EQ(Printable("\u00fc\u4e2d\xff"), "\u00fc\u4e2d?");
}

TEST(ColumnsOf, CountsCharacters) {
  EXPECT_EQ(ColumnsOf(""), 0u);
  EXPECT_EQ(ColumnsOf("abc"), 3u);
  EXPECT_EQ(ColumnsOf("\u00fcb"), 2u);
}

TEST(CutToColumns, CutsAtACharacterAndEndsTheColour) {
  EXPECT_EQ(CutToColumns("abc", 5), "abc");
  EXPECT_EQ(CutToColumns("abc", 3), "abc");
  EXPECT_EQ(CutToColumns("abc", 2), "ab");
  EXPECT_EQ(CutToColumns("a\u00fcb", 2), "a\u00fc");
  const Painter paint(true);
  EXPECT_EQ(CutToColumns(paint(Style::kBad, "dead") + " tail", 2), "\x1b[31mde\x1b[0m");
  EXPECT_EQ(CutToColumns(paint(Style::kBad, "dead") + " tail", 6), "\x1b[31mdead\x1b[0m t");
  EXPECT_EQ(CutToColumns(paint(Style::kBad, "dead"), 4), "\x1b[31mdead\x1b[0m");
}

}  // namespace
}  // namespace lodestone::psctl
