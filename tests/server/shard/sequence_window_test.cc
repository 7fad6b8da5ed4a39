#include "server/shard/sequence_window.h"

#include <random>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using Verdict = SequenceWindow::Verdict;

TEST(SequenceWindow, TakesEachSequenceOnce) {
  SequenceWindow window;
  EXPECT_EQ(window.Check(1), Verdict::kNew);
  window.Mark(1);
  EXPECT_EQ(window.Check(1), Verdict::kDuplicate);
  EXPECT_EQ(window.Check(2), Verdict::kNew);
}

TEST(SequenceWindow, TakesSequencesOutOfOrderWithinTheWindow) {
  SequenceWindow window;
  window.Mark(limits::kSequenceWindow);
  EXPECT_EQ(window.Check(1), Verdict::kNew);
  window.Mark(1);
  EXPECT_EQ(window.Check(1), Verdict::kDuplicate);
  EXPECT_EQ(window.Check(2), Verdict::kNew);
}

TEST(SequenceWindow, RefusesWhatIsOlderThanTheWindow) {
  SequenceWindow window;
  window.Mark(limits::kSequenceWindow + 1);
  EXPECT_EQ(window.Check(1), Verdict::kTooOld);
  EXPECT_EQ(window.Check(2), Verdict::kNew);
}

TEST(SequenceWindow, ForgetsOldMarksWhenItJumpsFarAhead) {
  SequenceWindow window;
  window.Mark(5);
  window.Mark(5 + 10 * limits::kSequenceWindow);
  // The same bit position as 5, one window before the newest plus one.
  const Sequence same_bit = 5 + 9 * limits::kSequenceWindow + limits::kSequenceWindow / 2;
  EXPECT_EQ(window.Check(same_bit), Verdict::kNew);
}

// The loop that clears the skipped marks once never ended at the last sequence there is.
TEST(SequenceWindow, TakesTheLastSequenceThereIs) {
  SequenceWindow window;
  window.Mark(UINT64_MAX - 1);
  EXPECT_EQ(window.Check(UINT64_MAX), Verdict::kNew);
  window.Mark(UINT64_MAX);
  EXPECT_EQ(window.Check(UINT64_MAX), Verdict::kDuplicate);
  EXPECT_EQ(window.Check(UINT64_MAX - 1), Verdict::kDuplicate);
}

TEST(SequenceWindow, MadeOfItsBitsItAnswersTheSame) {
  for (const Sequence newest : {0ull, 1ull, 7ull, 1023ull, 1024ull, 1025ull, 5000ull}) {
    SequenceWindow window;
    for (Sequence s = 1; s <= newest; s += s % 3 == 0 || s + 1 == newest ? 1 : 2) window.Mark(s);
    const auto made = SequenceWindow::Make(window.newest(), window.AppliedBits());
    ASSERT_TRUE(made.has_value()) << newest;
    EXPECT_EQ(made->newest(), window.newest());
    EXPECT_EQ(made->AppliedBits(), window.AppliedBits());
    for (Sequence s = 1; s <= newest + 2; ++s) ASSERT_EQ(made->Check(s), window.Check(s)) << newest << " " << s;
  }
}

TEST(SequenceWindow, RefusesBitsThatNoWindowHas) {
  const std::string none(limits::kSequenceWindow / 8, '\0');
  std::string first = none;
  first[0] = 1;
  std::string second = none;
  second[0] = 3;
  EXPECT_TRUE(SequenceWindow::Make(0, none).has_value());
  EXPECT_TRUE(SequenceWindow::Make(1, first).has_value());
  EXPECT_FALSE(SequenceWindow::Make(1, none).has_value());   // The newest was applied.
  EXPECT_FALSE(SequenceWindow::Make(0, first).has_value());  // There is no sequence 0.
  EXPECT_FALSE(SequenceWindow::Make(1, second).has_value());
  EXPECT_FALSE(SequenceWindow::Make(1, first.substr(1)).has_value());
  EXPECT_FALSE(SequenceWindow::Make(1, first + first).has_value());
}

TEST(SequenceWindow, AgreesWithASetOverRandomTraffic) {
  constexpr unsigned kSeed = 20261121;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  SequenceWindow window;
  std::set<Sequence> applied;
  Sequence newest = 0;
  for (int i = 0; i < 200'000; ++i) {
    const Sequence back = random() % (limits::kSequenceWindow + 50);
    const Sequence sequence = std::max<Sequence>(1, newest + random() % 3 > back ? newest + random() % 3 - back : 1);
    Verdict expected = applied.contains(sequence) ? Verdict::kDuplicate : Verdict::kNew;
    if (sequence <= newest && newest - sequence >= limits::kSequenceWindow) expected = Verdict::kTooOld;
    ASSERT_EQ(window.Check(sequence), expected) << "sequence " << sequence << " newest " << newest;
    if (expected == Verdict::kNew) {
      window.Mark(sequence);
      applied.insert(sequence);
      newest = std::max(newest, sequence);
    }
  }
}

}  // namespace
}  // namespace lodestone::server
