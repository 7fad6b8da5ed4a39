#include "tools/psctl/text/table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(AlignedTable, AlignsWordsLeftAndNumbersRight) {
  EXPECT_EQ(AlignedTable({{"name", "rows"}, {"a", "5"}, {"long name", "1,000"}}),
            "  name        rows\n"
            "  a              5\n"
            "  long name  1,000\n");
}

TEST(AlignedTable, CountsCharactersAndLeavesNoBlanksAtTheEnd) {
  EXPECT_THAT(AlignedLines({{"peer", "waits for"}, {"m\u00fcller:1", ""}, {"x", "clock 7"}, {"ab\x1b[2J", ""}}),
              ElementsAre("  peer      waits for", "  m\u00fcller:1", "  x         clock 7", "  ab?[2J"));
}

TEST(AlignedTable, ColoursDoNotMoveColumns) {
  const Rows rows = {{"state", "n"}, {Cell("dead", Style::kBad), "1"}, {Cell("left", Style::kPlain), "22"}};
  EXPECT_THAT(AlignedLines(rows, Painter(true)),
              ElementsAre("  \x1b[2mstate\x1b[0m   \x1b[2mn\x1b[0m", "  \x1b[31mdead\x1b[0m    1", "  left   22"));
  EXPECT_THAT(AlignedLines(rows), ElementsAre("  state   n", "  dead    1", "  left   22"));
}

TEST(AppendSection, LeavesOutWhatIsEmpty) {
  std::string text;
  AppendSection(&text, "tables", {{"table", "rows"}});
  EXPECT_THAT(text, IsEmpty());
  AppendSection(&text, "tables", {{"table", "rows"}, {"a", "1"}});
  EXPECT_EQ(text, "\ntables\n  table  rows\n  a         1\n");
}

TEST(WithUnit, TakesTheLargestUnitThatFits) {
  EXPECT_EQ(WithUnit(0), "0 B");
  EXPECT_EQ(WithUnit(1023), "1023 B");
  EXPECT_EQ(WithUnit(1536), "1.5 KiB");
  EXPECT_EQ(WithUnit(3ull << 30), "3.0 GiB");
}

TEST(RateText, IsRounded) {
  EXPECT_EQ(RateText(1234.6), "1,235");
  EXPECT_EQ(RateText(0), "0");
  EXPECT_EQ(RateText(-1), "0");
  EXPECT_EQ(SecondsText(4.24), "4.2 s");
}

}  // namespace
}  // namespace lodestone::psctl
