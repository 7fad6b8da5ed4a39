#include "tests/chaos/linearizability.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::chaos {
namespace {

using Answer = Linearization::Answer;
using testing::ElementsAre;
using Operations = std::vector<Operation>;

Operation Add(int64_t value, int64_t start_ns, int64_t end_ns) {
  return {.call = Operation::Call::kAdd, .value = value, .start_ns = start_ns, .end_ns = end_ns};
}

Operation Read(int64_t value, int64_t start_ns, int64_t end_ns) {
  return {.call = Operation::Call::kRead, .value = value, .start_ns = start_ns, .end_ns = end_ns};
}

Answer AnswerOf(const Operations& operations) { return CheckCounter(operations).answer; }

TEST(Linearizability, OfNothingIsLegal) { EXPECT_EQ(AnswerOf({}), Answer::kLegal); }

TEST(Linearizability, OneAfterTheOtherMustCountUp) {
  EXPECT_EQ(AnswerOf({Read(0, 0, 1), Add(5, 2, 3), Read(5, 4, 5), Add(2, 6, 7), Read(7, 8, 9)}), Answer::kLegal);
  EXPECT_EQ(AnswerOf({Add(5, 0, 1), Read(0, 2, 3)}), Answer::kIllegal) << "lost";
  EXPECT_EQ(AnswerOf({Add(5, 0, 1), Read(10, 2, 3)}), Answer::kIllegal) << "doubled";
  EXPECT_EQ(AnswerOf({Read(5, 0, 1), Add(5, 2, 3)}), Answer::kIllegal) << "shown before it was made";
}

TEST(Linearizability, AReadBesideAnAddShowsItOrNot) {
  EXPECT_EQ(AnswerOf({Add(5, 0, 10), Read(0, 2, 3)}), Answer::kLegal);
  EXPECT_EQ(AnswerOf({Add(5, 0, 10), Read(5, 2, 3)}), Answer::kLegal);
  EXPECT_EQ(AnswerOf({Add(5, 0, 10), Read(3, 2, 3)}), Answer::kIllegal);
}

TEST(Linearizability, WhatWasShownStaysShown) {
  EXPECT_EQ(AnswerOf({Add(5, 0, 10), Read(0, 1, 2), Read(5, 3, 4)}), Answer::kLegal);
  EXPECT_EQ(AnswerOf({Add(5, 0, 10), Read(5, 1, 2), Read(0, 3, 4)}), Answer::kIllegal);
  EXPECT_EQ(AnswerOf({Add(5, 0, 10), Read(5, 1, 4), Read(0, 3, 4)}), Answer::kLegal) << "they overlap";
}

TEST(Linearizability, TwoReadersSeeTwoAddsInOneOrder) {
  const Operations adds = {Add(1, 0, 10), Add(2, 0, 10)};
  Operations legal = adds, illegal = adds;
  legal.insert(legal.end(), {Read(1, 1, 2), Read(3, 3, 4)});
  illegal.insert(illegal.end(), {Read(1, 1, 2), Read(2, 3, 4)});
  EXPECT_EQ(AnswerOf(legal), Answer::kLegal);
  EXPECT_EQ(AnswerOf(illegal), Answer::kIllegal);
}

TEST(Linearizability, AnAddWithoutAnAnswerHasItsPlaceAtAnyTimeOrNever) {
  EXPECT_EQ(AnswerOf({Add(5, 0, kNeverNs), Read(0, 10, 11), Read(0, 20, 21)}), Answer::kLegal);
  EXPECT_EQ(AnswerOf({Add(5, 0, kNeverNs), Read(0, 10, 11), Read(5, 20, 21)}), Answer::kLegal);
  EXPECT_EQ(AnswerOf({Add(5, 0, kNeverNs), Read(5, 10, 11), Read(0, 20, 21)}), Answer::kIllegal);
  EXPECT_EQ(AnswerOf({Read(5, 10, 11), Add(5, 12, kNeverNs)}), Answer::kIllegal);
}

TEST(Linearizability, AReadWithoutAnAnswerSaysNothing) {
  EXPECT_EQ(AnswerOf({Add(5, 0, 1), Read(99, 2, kNeverNs), Read(5, 3, 4)}), Answer::kLegal);
}

TEST(Linearizability, WhatEndsAsAnotherBeginsIsConcurrentWithIt) {
  EXPECT_EQ(AnswerOf({Add(5, 0, 1), Read(0, 1, 2)}), Answer::kLegal);
}

TEST(Linearizability, GivesTheOrderThatExplainsAHistoryAndWhatNoOrderDoes) {
  EXPECT_THAT(CheckCounter(Operations{Add(1, 0, 10), Add(2, 0, 10), Read(2, 1, 2)}).order, ElementsAre(1, 2, 0));
  const Linearization illegal = CheckCounter(Operations{Add(1, 0, 1), Read(1, 2, 3), Read(4, 4, 5)});
  EXPECT_EQ(illegal.answer, Answer::kIllegal);
  EXPECT_THAT(illegal.order, ElementsAre(0, 1));
  EXPECT_EQ(illegal.stuck, 2);
}

TEST(Linearizability, GivesUpAfterSoManyStatesAsItIsAllowed) {
  Operations operations;
  for (int i = 0; i < 20; ++i) operations.push_back(Add(int64_t{1} << i, 0, 100));
  operations.push_back(Read(-1, 0, 100));
  EXPECT_EQ(CheckCounter(operations, 1000).answer, Answer::kUndecided);
}

// Tries every order.
bool BruteForce(const Operations& operations) {
  std::vector<size_t> order(operations.size());
  std::iota(order.begin(), order.end(), 0);
  do {
    // An add without an answer that stands after all else may as well never have been.
    int64_t counter = 0;
    bool explains = true;
    for (size_t i = 0; i < order.size() && explains; ++i) {
      const Operation& operation = operations[order[i]];
      for (size_t j = i + 1; j < order.size(); ++j) explains &= operations[order[j]].end_ns >= operation.start_ns;
      if (operation.call == Operation::Call::kAdd) {
        counter += operation.value;
      } else {
        explains &= !operation.answered() || operation.value == counter;
      }
    }
    if (explains) return true;
  } while (std::next_permutation(order.begin(), order.end()));
  return false;
}

// What a counter would have answered, with the operations' places drawn within their times; some answers are then
// changed, and some taken away.
Operations RandomHistory(uint64_t seed, size_t size) {
  uint64_t n = 0;
  const auto draw = [&](uint64_t bound) { return static_cast<int64_t>(RandomBits(seed, n++) % bound); };
  Operations operations;
  std::vector<std::pair<int64_t, size_t>> places;
  for (size_t i = 0; i < size; ++i) {
    const int64_t start_ns = draw(20), place = start_ns + draw(8), end_ns = place + draw(8);
    operations.push_back(draw(2) == 0 ? Add(1 + draw(3), start_ns, end_ns) : Read(0, start_ns, end_ns));
    places.emplace_back(place, i);
  }
  std::sort(places.begin(), places.end());
  int64_t counter = 0;
  for (const auto& [place, i] : places) {
    Operation& operation = operations[i];
    if (operation.call == Operation::Call::kAdd) {
      counter += operation.value;
    } else {
      operation.value = counter;
      if (draw(6) == 0) operation.value = std::max<int64_t>(0, counter + draw(3) - 1);
    }
    if (draw(10) == 0) operation.end_ns = kNeverNs;
  }
  return operations;
}

TEST(Linearizability, AnswersAsTryingEveryOrderDoes) {
  uint64_t legal = 0, illegal = 0;
  for (uint64_t seed = 0; seed < 20000; ++seed) {
    const Operations operations = RandomHistory(seed, 1 + seed % 7);
    const bool expected = BruteForce(operations);
    ASSERT_EQ(AnswerOf(operations) == Answer::kLegal, expected) << "seed " << seed;
    ++(expected ? legal : illegal);
  }
  EXPECT_GT(legal, 1000);
  EXPECT_GT(illegal, 1000);
}

// A counter at which `clients` operations are open all the time.
Operations LongHistory(uint64_t seed, size_t size, size_t clients) {
  Operations operations;
  std::vector<std::pair<int64_t, size_t>> places;
  std::vector<int64_t> free_ns(clients);
  for (size_t i = 0; i < size; ++i) {
    int64_t& free = free_ns[i % clients];
    const auto draw = [&](uint64_t n) { return static_cast<int64_t>(RandomBits(seed, 4 * i + n) % 1000); };
    const int64_t start_ns = free + 1, place = start_ns + draw(0), end_ns = place + draw(1);
    free = end_ns;
    operations.push_back(draw(2) % 2 == 0 ? Add(1 + draw(3) % 7, start_ns, end_ns) : Read(0, start_ns, end_ns));
    operations.back().client = i % clients;
    places.emplace_back(place, i);
  }
  std::sort(places.begin(), places.end());
  int64_t counter = 0;
  for (const auto& [place, i] : places) {
    if (operations[i].call == Operation::Call::kAdd) counter += operations[i].value;
    if (operations[i].call == Operation::Call::kRead) operations[i].value = counter;
  }
  return operations;
}

TEST(Linearizability, DecidesFiveThousandOperationsOnOneRowOfWhichEightAreOpen) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    Operations operations = LongHistory(seed, 5000, 8);
    EXPECT_EQ(OpenMax(operations), 8);
    EXPECT_EQ(AnswerOf(operations), Answer::kLegal) << "seed " << seed;
    // One add less than there was, near the end.
    const auto lost = std::find_if(operations.begin() + 4900, operations.end(),
                                   [](const Operation& o) { return o.call == Operation::Call::kAdd; });
    operations.erase(lost);
    EXPECT_EQ(AnswerOf(operations), Answer::kIllegal) << "seed " << seed;
  }
}

}  // namespace
}  // namespace lodestone::chaos
