// What a history says of a cluster: whether its counters are linearizable, row by row, and more.
//
// What a ps shows may be taken back, as long as it is not acknowledged: a pull shows pushes that are neither logged nor
// at a follower yet, and when the ps dies before they are, it is as if they had never been, until their clients send
// them again. So a row that is not linearizable is judged once more without the reads that may have shown such a push:
// those between a push's call and a kill that met it unanswered. Nothing else is excused: an acknowledged push is in
// every later read, and no read shows a push that nobody has made.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/chaos/history.h"

namespace lodestone::chaos {

struct Judgement {
  uint64_t histories = 0;
  uint64_t operations = 0;
  uint64_t unanswered = 0;
  uint64_t rows = 0;
  uint64_t rows_linearizable = 0;
  uint64_t rows_taken_back = 0;  // Linearizable but for reads that a kill may have made untrue.
  uint64_t rows_illegal = 0;
  uint64_t rows_undecided = 0;        // The search was given up.
  uint64_t twins_apart = 0;           // Reads that showed half of a push.
  uint64_t own_adds_missing = 0;      // Reads without an add that their own client had an answer to.
  uint64_t versions_fallen = 0;       // Reads of a version below that of a read that had ended before,
  uint64_t versions_taken_back = 0;   // and those of them that a kill explains, which are not counted above.
  uint64_t open_max = 0;              // Operations on one row at one time.
  double seconds_max = 0;             // That a history took.
  std::vector<std::string> findings;  // The first few, in words.

  bool ok() const {
    return rows_illegal == 0 && rows_undecided == 0 && twins_apart == 0 && own_adds_missing == 0 &&
           versions_fallen == 0;
  }
  void Add(const Judgement& other);
};

Judgement Judge(const History& history);

// A few lines for people.
std::string ToText(const Judgement& judgement);

}  // namespace lodestone::chaos
