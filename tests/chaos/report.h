// What a chaos run measured, for people and for machines.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/chaos/goodput.h"
#include "tests/chaos/judgement.h"
#include "tests/chaos/ledger.h"
#include "tests/chaos/schedule.h"
#include "tests/chaos/worker_turnover.h"

namespace lodestone::chaos {

struct Report {
  uint64_t seed = 0;
  double seconds = 0;

  // By kind: the recovery times of those that were carried out, in milliseconds.
  std::map<FaultKind, std::vector<double>> recoveries_ms;
  std::map<FaultKind, uint64_t> impossible;  // Faults that could not be carried out.
  // By kind, where others took over: how long nothing was acknowledged for the shards of the one that was gone.
  std::map<FaultKind, std::vector<double>> outages_ms;
  uint64_t kept_disks = 0;            // Ps that were to lose theirs, and had a copy that nobody else had.
  std::vector<std::string> schedule;  // All of them in order, with what became of them.

  uint64_t acknowledged = 0;
  uint64_t duplicates = 0;  // Pushes that a ps knew already; those that it recognised before it died are not counted.
  uint64_t audits = 0;
  Verdict verdict;             // Of all audits together.
  Judgement judgement;         // Of what was recorded.
  TurnoverReport turnover;     // Of the workers; all 0: there were none.
  bool replicas = false;       // Shards have followers.
  int64_t lease_ms = 0;        // With followers.
  uint64_t replicas_same = 0;  // Shards whose owner and follower held the same, in all comparisons.
  uint64_t replicas_differ = 0;
  double pause_seconds_max = 0;
  double calm_pushes_per_second = 0;    // Acknowledged, before the first fault.
  double stormy_pushes_per_second = 0;  // From then on, audits apart.

  double goodput_every_seconds = 0;    // Length of the periods with and without a fault; 0: there are none.
  std::vector<GoodputShares> goodput;  // By fault, in order.

  std::string failure;  // Why the run ended early; empty: it did not.
  bool stopped = false;

  // Nothing lost, nothing doubled, nothing read that must not be, no follower that holds something else, nobody ended
  // who must not have.
  bool ok() const { return failure.empty() && verdict.ok() && judgement.ok() && audits > 0 && replicas_differ == 0; }
  uint64_t faults() const;
  // What a failover may take at most: twice the lease and half a second.
  double outage_ms_bound() const { return 2 * static_cast<double>(lease_ms) + 500; }
};

std::string ToTable(const Report& report);
// One object, on one line.
std::string ToJson(const Report& report);

}  // namespace lodestone::chaos
