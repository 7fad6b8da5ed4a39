#include "tests/chaos/ledger.h"

#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "common/wire/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::chaos {
namespace {

using testing::HasSubstr;

constexpr uint32_t kShards = 4;

// A ledger, and servers that apply what they are told to.
class LedgerTest : public testing::Test {
 protected:
  LedgerTest() : LedgerTest({.seed = 3, .slots = 2, .shards = kShards, .owners = InitialOwners(kShards, 2)}) {}
  explicit LedgerTest(Workload::Options options) : workload_(std::move(options)), ledger_(&workload_) {
    held_.dense.resize(workload_.ElementsOf(TableName::kDense));
    held_.large.resize(workload_.ElementsOf(TableName::kLarge));
    held_.versions.resize(kShards);
  }

  // As the ps does, on one shard or all.
  void Apply(const Push& push, int only_shard = -1) {
    const auto on = [&](ShardId shard) { return only_shard < 0 || static_cast<int>(shard) == only_shard; };
    for (const CellAdd& cell : push.cells) {
      auto& values = cell.table == TableName::kDense ? held_.dense : held_.large;
      if (on(cell.shard)) values[cell.element] += static_cast<float>(cell.value);
    }
    for (const RowAdd& row : push.rows) {
      if (!on(row.shard)) continue;
      if (row.table == TableName::kDigits) {
        auto& values = held_.digits[row.key];
        values.resize(workload_.DimOf(TableName::kDigits));
        values[row.column] += static_cast<float>(row.value);
      } else if (row.table == TableName::kRows) {
        auto& values = held_.rows[row.key];
        values.resize(workload_.DimOf(TableName::kRows));
        values[row.column] += static_cast<float>(row.value);
      } else {
        auto& value = held_.adagrad[row.key];
        value.resize(1);
        const float sum = adagrad_sums_[row.key] += 1;
        value[0] += 1 / (std::sqrt(sum) + 1e-7f);
      }
    }
    for (const ShardId shard : push.shards) held_.versions[shard] += on(shard) ? 1 : 0;
  }

  void Acknowledge(const Push& push) {
    ledger_.Acknowledged(push);
    for (const ShardId shard : push.shards) ++acknowledged_[shard];
  }
  void ApplyAndAcknowledge(const Push& push) {
    Apply(push);
    Acknowledge(push);
  }

  Verdict Check() {
    for (const Key key : ledger_.KeysOf(TableName::kRows)) {
      held_.rows[key].resize(workload_.DimOf(TableName::kRows));
    }
    for (const Key key : ledger_.KeysOf(TableName::kAdagrad)) held_.adagrad[key].resize(1);
    for (const Key key : ledger_.KeysOf(TableName::kDigits)) {
      held_.digits[key].resize(workload_.DimOf(TableName::kDigits));
    }
    return ledger_.Check(held_);
  }

  // The same, without the versions: how many pushes there are says nothing of which.
  Verdict CheckDigits() {
    held_.versions = acknowledged_;
    return Check();
  }

  // Some pushes of both slots, all as they should be.
  void PushSome(uint64_t from, uint64_t to) {
    for (uint64_t number = from; number < to; ++number) {
      for (uint32_t slot = 0; slot < 2; ++slot) ApplyAndAcknowledge(workload_.SteadyPush(slot, number));
    }
  }

  const Workload workload_;
  Ledger ledger_;
  Held held_;
  std::map<Key, float> adagrad_sums_;
  std::vector<Version> acknowledged_ = std::vector<Version>(kShards);  // Pushes, by shard.
};

TEST_F(LedgerTest, IsContentWithEveryPushOnce) {
  PushSome(0, 3000);  // Beyond one row of Adagrad's table.
  for (uint32_t i = 0; i < kLastPushesMax; ++i) ApplyAndAcknowledge(workload_.LastPush(1, 3000 + i, i));
  const Verdict verdict = Check();
  EXPECT_TRUE(verdict.ok()) << testing::PrintToString(verdict.findings);
  EXPECT_GT(verdict.compared, held_.dense.size() + held_.large.size());
  EXPECT_EQ(ledger_.acknowledged(), 6016);
  PushSome(3100, 3200);
  EXPECT_TRUE(Check().ok());
}

TEST_F(LedgerTest, NoticesEachSinglePushThatIsLostOrDoubled) {
  for (uint64_t number = 0; number < 200; ++number) {
    const Push lost = workload_.SteadyPush(0, 2 * number);
    ledger_.Acknowledged(lost);
    Verdict verdict = Check();
    EXPECT_GT(verdict.lost, 0) << number;
    EXPECT_EQ(verdict.doubled, 0) << number;
    const Push doubled = workload_.SteadyPush(0, 2 * number + 1);
    ApplyAndAcknowledge(doubled);
    Apply(doubled);
    verdict = Check();
    EXPECT_GT(verdict.doubled, 0) << number;
    EXPECT_EQ(verdict.lost, 0) << number;
    EXPECT_TRUE(Check().ok()) << "what was found is found once";
  }
}

TEST_F(LedgerTest, NoticesOnePushLostForAnotherDoubled) {
  PushSome(0, 50);
  uint64_t noticed = 0;
  for (uint64_t number = 100; number < 200; number += 2) {
    ledger_.Acknowledged(workload_.SteadyPush(0, number));
    ApplyAndAcknowledge(workload_.SteadyPush(0, number + 1));
    Apply(workload_.SteadyPush(0, number + 1));
    noticed += Check().ok() ? 0 : 1;
  }
  EXPECT_EQ(noticed, 50);
}

TEST_F(LedgerTest, NoticesAPushThatIsMissingOnOneShard) {
  PushSome(0, 10);
  Push push = workload_.SteadyPush(1, 10);
  for (uint64_t number = 11; push.shards.size() < 2; ++number) push = workload_.SteadyPush(1, number);
  Apply(push, static_cast<int>(push.shards[0]));
  ledger_.Acknowledged(push);
  EXPECT_GT(Check().lost, 0);
}

TEST_F(LedgerTest, TakesAllOrNothingOfAnUnansweredLastPushOnEachShard) {
  PushSome(0, 10);
  const Push absent = workload_.LastPush(0, 10, 0);
  const Push whole = workload_.LastPush(0, 11, 1);
  const Push half = workload_.LastPush(0, 12, 2);
  Apply(whole);
  Apply(half, 2);
  for (const Push& push : {absent, whole, half}) ledger_.Unanswered(push);
  const Verdict verdict = Check();
  EXPECT_TRUE(verdict.ok()) << testing::PrintToString(verdict.findings);
  EXPECT_EQ(verdict.undecided, 3 * kShards);
  EXPECT_EQ(verdict.applied, kShards + 1);
  EXPECT_TRUE(Check().ok());
  // The cells are used again by the next client that dies.
  ApplyAndAcknowledge(workload_.LastPush(0, 20, 0));
  ledger_.Acknowledged(workload_.LastPush(0, 21, 1));
  EXPECT_GT(Check().lost, 0);
}

TEST_F(LedgerTest, NoticesALastPushThatIsOnAShardInPart) {
  const Push push = workload_.LastPush(0, 0, 7);  // With the large table.
  Apply(push);
  held_.large[push.cells.back().element] -= 1;
  ledger_.Unanswered(push);
  const Verdict verdict = Check();
  EXPECT_EQ(verdict.wrong, 1);
  EXPECT_THAT(verdict.findings[0], HasSubstr("in part"));
}

TEST_F(LedgerTest, NoticesALastPushAppliedTwice) {
  const Push push = workload_.LastPush(1, 0, 3);
  Apply(push);
  Apply(push);
  ledger_.Unanswered(push);
  EXPECT_GT(Check().doubled, 0);
}

TEST_F(LedgerTest, NoticesLostStateOfAnOptimizer) {
  PushSome(0, 100);
  EXPECT_TRUE(Check().ok());
  adagrad_sums_.clear();
  PushSome(100, 110);
  EXPECT_GT(Check().wrong, 0);
}

TEST_F(LedgerTest, NoticesAVersionThatIsNotTheNumberOfUpdates) {
  PushSome(0, 10);
  ++held_.versions[3];
  const Verdict verdict = Check();
  EXPECT_EQ(verdict.doubled, 1);
  EXPECT_THAT(verdict.findings[0], HasSubstr("version of shard 3"));
}

TEST(Digits, OfAllPushesLieApartAndMakeExactSums) {
  const Workload workload({.seed = 3, .slots = 2, .shards = kShards, .owners = InitialOwners(kShards, 2)});
  std::map<std::pair<Key, uint32_t>, std::vector<int32_t>> places;
  constexpr uint64_t kPushes = 10'000;
  for (uint64_t number = 0; number < kPushes; ++number) {
    for (uint32_t slot = 0; slot < 2; ++slot) {
      const RowAdd digit = workload.DigitOf(slot, number);
      EXPECT_EQ(ShardOfKey(digit.key, kShards), digit.shard);
      EXPECT_LT(digit.column, workload.DimOf(TableName::kDigits));
      places[{digit.key, digit.column}].push_back(digit.value);
    }
  }
  for (const auto& [place, weights] : places) {
    EXPECT_LE(weights.size(), kDigitsPerFloat);
    float sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(weights[i], 1 << (kDigitBits * i));
      sum += 3 * static_cast<float>(weights[i]);  // Each push three times.
    }
    EXPECT_EQ(sum, static_cast<float>((int64_t{1} << (kDigitBits * weights.size())) - 1));
  }
}

// What else a push adds to is left out: its digit alone tells.
class DigitsTest : public LedgerTest {
 protected:
  static Workload::Options DigitsOnly() {
    return {.seed = 3, .slots = 2, .shards = kShards, .owners = InitialOwners(kShards, 2), .digits_only = true};
  }
  DigitsTest() : LedgerTest(DigitsOnly()) {}
};

TEST_F(DigitsTest, NameEachPushThatIsLostAndEachThatIsDoubled) {
  PushSome(0, 1000);
  Acknowledge(workload_.SteadyPush(1, 1000));
  const Push doubled = workload_.SteadyPush(0, 1016);  // In the same float as another's.
  ApplyAndAcknowledge(doubled);
  Apply(doubled);
  const Verdict verdict = CheckDigits();
  EXPECT_EQ(verdict.lost, 1);
  EXPECT_EQ(verdict.doubled, 1);
  EXPECT_EQ(verdict.judged, 2002);
  EXPECT_THAT(verdict.findings, testing::Contains(HasSubstr("slot 1's push 1000 (acknowledged) is there 0 times")));
  EXPECT_THAT(verdict.findings, testing::Contains(HasSubstr("slot 0's push 1016 (acknowledged) is there 2 times")));
  EXPECT_TRUE(CheckDigits().ok()) << "what was found is found once";
}

TEST_F(DigitsTest, NoticeOnePushLostForAnotherDoubled) {
  PushSome(0, 100);
  for (uint64_t number = 100; number < 200; number += 2) {
    Acknowledge(workload_.SteadyPush(0, number));
    const Push doubled = workload_.SteadyPush(0, number + 1);
    ApplyAndAcknowledge(doubled);
    Apply(doubled);
  }
  const Verdict verdict = CheckDigits();
  EXPECT_EQ(verdict.lost, 50);
  EXPECT_EQ(verdict.doubled, 50);
}

TEST_F(DigitsTest, TakeAnUnansweredPushOnceOrNotButNeverTwice) {
  const Push absent = workload_.SteadyPush(0, 0), there = workload_.SteadyPush(0, 1),
             twice = workload_.SteadyPush(0, 2);
  for (const Push& push : {absent, there, twice}) ledger_.Unanswered(push);
  for (const Push& push : {there, twice, twice}) Apply(push);
  const Verdict verdict = CheckDigits();
  EXPECT_EQ(verdict.lost, 0);
  EXPECT_EQ(verdict.doubled, 1);
  EXPECT_EQ(verdict.undecided, 3);
  EXPECT_EQ(verdict.applied, 2);
}

TEST_F(DigitsTest, NoticeAPushThatNobodySentAndNumbersThatAreNone) {
  PushSome(0, 10);
  ApplyAndAcknowledge(workload_.SteadyPush(0, 12));
  Apply(workload_.SteadyPush(0, 11));
  Verdict verdict = CheckDigits();
  EXPECT_EQ(verdict.wrong, 1);
  EXPECT_THAT(verdict.findings[0], HasSubstr("(never sent) is there 1 times"));
  held_.digits.begin()->second[15] = 0.5f;
  EXPECT_EQ(CheckDigits().wrong, 1);
}

TEST_F(LedgerTest, NoticesNumbersThatAreNone) {
  PushSome(0, 10);
  held_.dense[5] = std::nanf("");
  held_.dense[6] = 0.5f;
  EXPECT_EQ(Check().wrong, 2);
}

}  // namespace
}  // namespace lodestone::chaos
