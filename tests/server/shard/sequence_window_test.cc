#include "server/shard/sequence_window.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace lodestone {
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
}  // namespace lodestone
