#include "tests/chaos/schedule.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "tests/chaos/workload.h"

namespace lodestone::chaos {
namespace {

constexpr int64_t kAwayMsMax = 400;
constexpr int64_t kStopMsMax = 3'000;  // Longer than clients wait for an answer before they ask again.
constexpr int64_t kSlowMsMax = 1'500;
constexpr int64_t kFullMsMax = 1'000;
constexpr int64_t kGoneMsMax = 2'000;    // A ps that lost its disk.
constexpr int64_t kZombieMsMax = 2'000;  // Beyond the lease.
constexpr int64_t kPartitionLeases = 3;  // At most.
constexpr int64_t kBetweenMsMax = 200;   // Delay.

// Names of a fault's numbers in its stream.
enum Draw : uint64_t {
  kServer,
  kClient,
  kGap,
  kLength,
  kTimes,
  kBytes,
  kDirection,
  kWeather,
  kDelay,
  kRate,
  kRandom,
  kPeer,
  kWays
};

class Stream {
 public:
  Stream(uint64_t seed, uint64_t number) : seed_(StreamSeed(StreamSeed(seed, 0xfa), number)) {}
  uint64_t operator()(Draw n, uint64_t bound) const { return RandomBits(seed_, n) % bound; }

 private:
  const uint64_t seed_;
};

// The `number`-th kind: each round is a permutation of all of them.
FaultKind DrawKind(const ScheduleOptions& options, uint64_t number) {
  std::vector<FaultKind> kinds;
  for (const FaultKind kind : options.kinds) kinds.insert(kinds.end(), InfoOf(kind).share, kind);
  const uint64_t round = StreamSeed(StreamSeed(options.seed, 0xfb), number / kinds.size());
  for (size_t i = kinds.size() - 1; i > 0; --i) std::swap(kinds[i], kinds[RandomBits(round, i) % (i + 1)]);
  return kinds[number % kinds.size()];
}

int64_t DrawMs(const Stream& draw, FaultKind kind, int64_t lease_ms) {
  const auto below = [&](int64_t ms) { return static_cast<int64_t>(draw(kLength, ms)); };
  switch (kind) {
    case FaultKind::kStop:
      return below(kStopMsMax);
    case FaultKind::kSlow:
    case FaultKind::kHole:
    case FaultKind::kSlowBetween:
      return below(kSlowMsMax);
    case FaultKind::kDiskFull:
      return below(kFullMsMax);
    case FaultKind::kLose:
    case FaultKind::kKillInBootstrap:
      return below(kGoneMsMax);
    case FaultKind::kZombie:
      return lease_ms + below(kZombieMsMax);
    case FaultKind::kPartition:
      return below(kPartitionLeases * lease_ms);
    default:
      return below(kAwayMsMax);
  }
}

// Whether ps 0 is left out, where there are others: it serves the coordinator.
bool SparesFirst(FaultKind kind) {
  return kind == FaultKind::kMove || kind == FaultKind::kLose || kind == FaultKind::kKillInBootstrap ||
         kind == FaultKind::kZombie || kind == FaultKind::kDrain;
}

// Whether clients do not reach the coordinator meanwhile: after a lease they would be none any more.
bool CutsClientsOff(const Fault& fault) {
  if (fault.server != 0) return false;
  return fault.kind == FaultKind::kPartition ? fault.peer == kAllClients
                                             : fault.kind == FaultKind::kStop || fault.kind == FaultKind::kHole;
}

// A server other than fault.server.
uint32_t DrawPeer(const Stream& draw, const Fault& fault, uint32_t servers) {
  const uint32_t peers = servers + (fault.kind == FaultKind::kPartition ? 1 : 0);  // And the clients.
  if (peers < 2) return fault.server;
  const auto peer = static_cast<uint32_t>((fault.server + 1 + draw(kPeer, peers - 1)) % peers);
  return peer == servers ? kAllClients : peer;
}

// A link that is slow in one way or another.
TcpProxy::Link SlowLink(const Stream& draw) {
  if (draw(kWeather, 2) == 0) return {.delay_ms = 1 + static_cast<int64_t>(draw(kDelay, 40))};
  // Enough for the longest messages of all clients within the time that these wait for answers.
  return {.bytes_per_second = 3'000'000 + draw(kRate, 10'000'000)};
}

std::string DescribeLink(const TcpProxy::Link& link) {
  if (link.delay_ms > 0) return absl::StrCat(", over links with ", link.delay_ms, " ms delay");
  if (link.bytes_per_second > 0) return absl::StrCat(", over links of ", link.bytes_per_second / 1000, " kB/s");
  return "";
}

}  // namespace

const std::vector<FaultInfo>& FaultInfos() {
  static const auto& infos = *new std::vector<FaultInfo>{
      {FaultKind::kKill, "kill", "kill -9 of a ps, which comes back a moment later", true, false, 4},
      {FaultKind::kKillAgain, "kill-again", "the same, and again while it starts", true, false, 2},
      {FaultKind::kKillAll, "kill-all", "kill -9 of all ps", true, false, 1},
      {FaultKind::kKillInCheckpoint, "kill-in-checkpoint", "kill -9 while a checkpoint is written", true, false, 2},
      {FaultKind::kTerminate, "terminate", "SIGTERM, and a start after the orderly end", true, false, 1},
      {FaultKind::kMove, "move", "kill -9 of a ps, which comes back at another address (never ps 0)", true, false, 1},
      {FaultKind::kTear, "tear", "kill -9, and half a record at the end of its log", true, false, 1},
      {FaultKind::kFlip, "flip", "kill -9, and a bit of its log flipped: it must refuse to start until that is mended",
       true, false, 1},
      {FaultKind::kFlipFile, "flip-file",
       "the same in another of its files, mostly a checkpoint's: it may do without that one instead", true, false, 1},
      {FaultKind::kDiskFull, "disk-full", "no room for its files for a while", true, false, 1},
      {FaultKind::kCheckpoint, "checkpoint", "no fault: a checkpoint under load", true, false, 1},
      {FaultKind::kStop, "stop", "SIGSTOP, and SIGCONT up to 3 s later", false, false, 1},
      {FaultKind::kClient, "client", "the death of a client with pushes under way, and its next incarnation", false,
       false, 2},
      {FaultKind::kCut, "cut", "reset of all connections to a ps", false, false, 1},
      {FaultKind::kCutInside, "cut-inside", "reset of a connection inside a message, either way", false, false, 2},
      {FaultKind::kLoseReply, "lose-reply", "requests arrive, and connections are reset before the replies do", false,
       false, 2},
      {FaultKind::kHole, "hole", "no byte passes in one direction for a while, then a reset", false, false, 1},
      {FaultKind::kSlow, "slow", "links with delay, or of few bytes per second, for a while", false, false, 1},
      {FaultKind::kLose, "lose", "kill -9 of a ps that stays dead and whose disk is gone (never ps 0)", true, true, 6},
      {FaultKind::kKillInBootstrap, "kill-in-bootstrap",
       "the same, and kill -9 of who follows others then, while it gets their state", true, true, 3},
      {FaultKind::kZombie, "zombie", "SIGSTOP for longer than the lease (never ps 0)", false, true, 3},
      {FaultKind::kPartition, "partition",
       "no byte passes between two ps, or a ps and the clients, in one direction or both", false, true, 4},
      {FaultKind::kSlowBetween, "slow-between", "links with delay between two ps", false, true, 1},
      {FaultKind::kCutBetween, "cut-between", "reset of all connections between two ps", false, true, 1},
      {FaultKind::kReshard, "reshard",
       "shards are told to move to a ps, and it, their owner, ps 0 or nobody is killed meanwhile", true, false, 3},
      {FaultKind::kDrain, "drain",
       "all shards of a ps move away, it is killed, and gets its part again when it is back; with --durability replica "
       "its "
       "disk is empty then (never ps 0)",
       true, false, 1},
  };
  return infos;
}

const FaultInfo& InfoOf(FaultKind kind) {
  const auto& infos = FaultInfos();
  const auto found = std::find_if(infos.begin(), infos.end(), [&](const auto& info) { return info.kind == kind; });
  LODESTONE_CHECK(found != infos.end());
  return *found;
}

absl::StatusOr<std::vector<FaultKind>> ParseFaults(const std::vector<std::string>& names) {
  std::vector<FaultKind> kinds;
  const auto& infos = FaultInfos();
  for (const std::string& name : names) {
    const auto found = std::find_if(infos.begin(), infos.end(), [&](const auto& info) { return info.name == name; });
    if (found == infos.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "there is no fault '", name, "'; there are: ",
          absl::StrJoin(infos, " ", [](std::string* out, const auto& info) { absl::StrAppend(out, info.name); })));
    }
    kinds.push_back(found->kind);
  }
  return kinds;
}

Fault DrawFault(const ScheduleOptions& options, uint64_t number) {
  LODESTONE_CHECK(!options.kinds.empty() && options.servers > 0 && options.clients > 0);
  const Stream draw(options.seed, number);
  Fault fault;
  fault.number = number;
  fault.kind = DrawKind(options, number);
  fault.server = static_cast<uint32_t>(draw(kServer, options.servers));
  if (SparesFirst(fault.kind) && options.servers > 1) {
    fault.server = 1 + static_cast<uint32_t>(draw(kServer, options.servers - 1));
  }
  fault.peer = DrawPeer(draw, fault, options.servers);
  fault.client = static_cast<uint32_t>(draw(kClient, options.clients));
  fault.after_pushes = 1 + draw(kGap, std::max<uint64_t>(2 * options.gap_pushes, 1));
  fault.duration_ms = DrawMs(draw, fault.kind, options.lease_ms);
  if (CutsClientsOff(fault)) fault.duration_ms = std::min(fault.duration_ms, options.lease_ms / 4);
  const uint32_t times_max = fault.kind == FaultKind::kClient ? kLastPushesMax - 1 : 3;
  fault.times = 1 + static_cast<uint32_t>(draw(kTimes, times_max));
  fault.bytes = 1 + draw(kBytes, 100'000);
  fault.direction = draw(kDirection, 2) == 0 ? TcpProxy::Direction::kRequests : TcpProxy::Direction::kReplies;
  // A fault in four happens in bad weather.
  if (fault.kind == FaultKind::kSlow || draw(kRandom, 4) == 0) fault.link = SlowLink(draw);
  fault.delay_ms = 1 + static_cast<int64_t>(draw(kDelay, kBetweenMsMax));
  const uint64_t ways = draw(kWays, 4);
  fault.holds_to_peer = ways != 0;  // Both ways as often as one of them.
  fault.holds_from_peer = ways != 1;
  fault.random = RandomBits(StreamSeed(options.seed, number), kRandom);
  return fault;
}

std::string Fault::Describe() const {
  std::string text = absl::StrCat("#", number, " ", InfoOf(kind).name, " ");
  const char* way = direction == TcpProxy::Direction::kRequests ? "requests" : "replies";
  switch (kind) {
    case FaultKind::kKillAll:
      absl::StrAppend(&text, "all ps, away for ", duration_ms, " ms");
      break;
    case FaultKind::kKillAgain:
      absl::StrAppend(&text, "ps ", server, ", away for ", duration_ms, " ms, ", times, " more deaths");
      break;
    case FaultKind::kClient:
      absl::StrAppend(&text, "of slot ", client, " with ", times, " last pushes");
      break;
    case FaultKind::kCutInside:
      absl::StrAppend(&text, "ps ", server, " after ", bytes, " bytes of ", way);
      break;
    case FaultKind::kHole:
      absl::StrAppend(&text, "ps ", server, " for ", way, " for ", duration_ms, " ms");
      break;
    case FaultKind::kCut:
    case FaultKind::kLoseReply:
    case FaultKind::kCheckpoint:
      absl::StrAppend(&text, "ps ", server);
      break;
    case FaultKind::kPartition:
      absl::StrAppend(&text, "ps ", server, holds_from_peer ? " <-" : " -", holds_to_peer ? "-> " : "- ",
                      peer == kAllClients ? "the clients" : absl::StrCat("ps ", peer), " for ", duration_ms, " ms");
      break;
    case FaultKind::kSlowBetween:
      absl::StrAppend(&text, "ps ", server, " and ps ", peer, " with ", delay_ms, " ms delay for ", duration_ms, " ms");
      break;
    case FaultKind::kCutBetween:
      absl::StrAppend(&text, "ps ", server, " and ps ", peer);
      break;
    default:
      absl::StrAppend(&text, "ps ", server, " for ", duration_ms, " ms");
  }
  return absl::StrCat(text, ", ", after_pushes, " pushes after the one before", DescribeLink(link));
}

bool TakesBack(FaultKind kind, bool replicas) {
  switch (kind) {
    case FaultKind::kClient:
    case FaultKind::kCheckpoint:
    case FaultKind::kCut:
    case FaultKind::kCutInside:
    case FaultKind::kLoseReply:
    case FaultKind::kDrain:
      return false;
    case FaultKind::kStop:
    case FaultKind::kHole:
    case FaultKind::kSlow:
    case FaultKind::kZombie:
    case FaultKind::kPartition:
    case FaultKind::kSlowBetween:
    case FaultKind::kCutBetween:
      return replicas;  // Others may take over.
    default:
      return true;
  }
}

}  // namespace lodestone::chaos
