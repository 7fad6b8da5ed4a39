// Which fault comes when: a function of the seed. Times are in acknowledged pushes, so that a seed means the same
// schedule on every machine.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/chaos/tcp_proxy.h"

namespace lodestone::chaos {

enum class FaultKind {
  kKill,
  kKillAgain,
  kKillAll,
  kKillInCheckpoint,
  kTerminate,
  kMove,
  kTear,
  kFlip,
  kFlipFile,
  kDiskFull,
  kCheckpoint,
  kStop,
  kClient,
  kCut,
  kCutInside,
  kLoseReply,
  kHole,
  kSlow,
  kLose,
  kKillInBootstrap,
  kZombie,
  kPartition,
  kSlowBetween,
  kCutBetween,
  kReshard,
  kDrain,
};

// What there is to know of a kind.
struct FaultInfo {
  FaultKind kind;
  const char* name;     // On command lines and in tables.
  const char* meaning;  // For --help.
  bool durable;         // Loses acknowledged pushes unless the ps keep a log.
  bool replicas;        // Needs followers.
  int share;            // How often it comes, beside the others.
};
const std::vector<FaultInfo>& FaultInfos();
const FaultInfo& InfoOf(FaultKind kind);
// Of names; INVALID_ARGUMENT, with those that there are, for another one.
absl::StatusOr<std::vector<FaultKind>> ParseFaults(const std::vector<std::string>& names);

inline constexpr uint32_t kAllClients = UINT32_MAX;

// One fault.
struct Fault {
  uint64_t number = 0;  // In the schedule, from 0.
  FaultKind kind = FaultKind::kKill;
  uint32_t server = 0;
  uint32_t peer = 0;          // Another one, or kAllClients, for what is between two.
  uint32_t client = 0;        // The slot, for kClient.
  uint64_t after_pushes = 0;  // Acknowledged since the fault before was over.
  int64_t duration_ms = 0;    // How long it lasts, or how long a ps stays away.
  uint32_t times = 1;         // For kKillAgain: deaths while it starts; for kClient: last pushes; for kReshard: shards.
  uint64_t bytes = 0;         // For kCutInside, kDiskFull and kLoseReply.
  TcpProxy::Direction direction = TcpProxy::Direction::kRequests;
  TcpProxy::Link link;  // Of every ps meanwhile; mostly a good one.
  // For what is between `server` and `peer`.
  int64_t delay_ms = 0;
  bool holds_to_peer = false;
  bool holds_from_peer = false;
  uint64_t random = 0;  // For whatever else must be chosen.

  // "#12 kill ps 1 after 211 pushes: away for 130 ms, link with 20 ms delay".
  std::string Describe() const;
};

struct ScheduleOptions {
  uint64_t seed = 1;
  std::vector<FaultKind> kinds;
  uint32_t servers = 2;
  uint32_t clients = 4;
  int64_t lease_ms = 10'000;
  uint64_t gap_pushes = 200;  // Mean of Fault::after_pushes.
};

// The `number`-th fault. All kinds, as often as their shares say, come before any comes again. REQUIRES: there are
// kinds.
Fault DrawFault(const ScheduleOptions& options, uint64_t number);

// Whether a ps that dies of a fault, or is replaced after it, takes with it what it has not acknowledged. `replicas`:
// shards have followers.
bool TakesBack(FaultKind kind, bool replicas);

}  // namespace lodestone::chaos
