// A history: what clients asked of a cluster's counters and what they were answered, with the times of both, and the
// faults that came meanwhile. README.md has its form in a file.
//
// A counter is a row; a push adds to it, a pull reads it. It has a twin: another row of the same shard that every add
// adds to as well and every read reads as well, in the same call.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/types.h"

namespace lodestone::chaos {

// The end of an operation that was never answered: it may take effect at any time after its start, or never.
inline constexpr int64_t kNeverNs = std::numeric_limits<int64_t>::max();

struct Operation {
  enum class Call { kAdd, kRead };

  uint64_t client = 0;  // One life of one client: a session.
  Call call = Call::kAdd;
  uint64_t row = 0;
  ShardId shard = 0;
  int64_t value = 0;    // What is added, or was read; a read that was not answered has none.
  int64_t twin = 0;     // Of a read.
  Version version = 0;  // The shard's, of a read.
  int64_t start_ns = 0;
  int64_t end_ns = kNeverNs;

  bool answered() const { return end_ns != kNeverNs; }
  friend bool operator==(const Operation&, const Operation&) = default;
};

// Something that the injector did.
struct FaultMark {
  std::string what;
  bool kills = false;  // A ps that dies or is replaced takes with it what it has not acknowledged.
  int64_t start_ns = 0;
  int64_t end_ns = kNeverNs;

  friend bool operator==(const FaultMark&, const FaultMark&) = default;
};

struct History {
  std::vector<Operation> operations;
  std::vector<FaultMark> faults;
};

// One line, without its end.
std::string ToJson(const Operation& operation);
std::string ToJson(const FaultMark& fault);
// As a file: a line each.
std::string ToJsonLines(const History& history);
// INVALID_ARGUMENT, with the number of the line, for what is none.
absl::StatusOr<History> ParseHistory(absl::string_view lines);

// The operations on one row as Knossos' events, one EDN map per line: {:process 3 :type :invoke :f :add :value 5}.
std::string ToEdn(const History& history, uint64_t row);

}  // namespace lodestone::chaos
