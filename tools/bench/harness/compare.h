// Tells regressions from noise between two runs of the benchmark.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "tools/bench/harness/row.h"

namespace lodestone::bench {

// Medians that differ by less than this share are the same.
inline constexpr double kNoiseShare = 0.05;

// The rule, for --help and the README.
extern const char kCompareRule[];

enum class Verdict { kSame, kNoise, kImprovement, kRegression, kMissing, kNew };

// What became of one metric of one row.
struct Difference {
  std::string name;    // Of the row.
  std::string metric;  // Empty for kMissing and kNew.
  Verdict verdict = Verdict::kSame;
  Spread before;
  Spread after;
  double ratio = 0;  // After / before, of the medians.
};

// Rows of `before` whose bench `after` has not run are left out.
std::vector<Difference> Compare(const Report& before, const Report& after);

// Whether any of them is beyond noise, to the worse.
bool HasRegression(const std::vector<Difference>& differences);

// The differences worth a line, and a last line that counts them all.
std::string ToText(const std::vector<Difference>& differences);

}  // namespace lodestone::bench
