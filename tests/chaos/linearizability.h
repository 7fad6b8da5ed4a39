// A linearizability checker for counters: whether there is one order of the operations on a row that explains all that
// was read, in which each operation has its place between its call and its answer.
//
// Wing and Gong's search ("Testing and verifying concurrent objects", 1993) with Lowe's memoisation of the states met
// ("Testing for linearizability", 2017), as in Horn and Kroening and in Porcupine.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/chaos/history.h"

namespace lodestone::chaos {

struct Linearization {
  enum class Answer { kLegal, kIllegal, kUndecided };
  Answer answer = Answer::kLegal;
  uint64_t states = 0;  // Met by the search.
  // kLegal: indices of the operations in one such order, without reads that were not answered. Otherwise the longest
  // beginning of one that was found.
  std::vector<size_t> order;
  // kIllegal: what the search could not place after that: the operation whose answer came first.
  size_t stuck = 0;
};

// More states than this are not searched: with at most 8 operations open at a time there are far fewer.
inline constexpr uint64_t kStatesMax = 20'000'000;

// `operations` are those of one counter, which begins with 0, in any order. An add without an answer has its place
// anywhere after its call, or nowhere.
Linearization CheckCounter(std::span<const Operation> operations, uint64_t states_max = kStatesMax);

// The most operations of them that are open at one time.
size_t OpenMax(std::span<const Operation> operations);

}  // namespace lodestone::chaos
