#include "tests/chaos/injector.h"

#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "tests/chaos/checkpoint_call.h"

namespace lodestone::chaos {
namespace {

// Lost replies: how long they are waited for. Clients that wait for answers send nothing more.
constexpr int64_t kReplyWaitMs = 500;
constexpr int64_t kMessageWaitMs = 5'000;  // The same of a message to cut.
constexpr uint64_t kReplyBytesMax = 2'000;
constexpr int kStatusTimeoutMs = 1'000;
constexpr int64_t kStartMs = 250;  // A ps is killed again so long after its start, at most.
constexpr uint64_t kFileBytesMax = 300'000;

void LimitFiles(pid_t pid, rlim_t bytes) {
  const rlimit limit{bytes, RLIM_INFINITY};
  prlimit(pid, RLIMIT_FSIZE, &limit, nullptr);
}

}  // namespace

absl::Status Injector::Inject(const Fault& fault, FaultOutcome* outcome) {
  LearnOwners();
  begun_ms_ = scene_.watch->NowMs();
  scene_.cluster->SetLinks(fault.link);
  absl::Status status = Dispatch(fault, outcome);
  scene_.cluster->SetLinks({});
  if (status.ok() && fault.kind != FaultKind::kClient) {
    status = AwaitRecovery();
    if (const auto seen_ms = scene_.progress->seen_ms()) outcome->recovery_ms = *seen_ms - begun_ms_;
    outcome->recovered_pushes = scene_.progress->seen_pushes().value_or(scene_.progress->acknowledged());
  }
  if (status.ok() && fault.kind == FaultKind::kClient) {
    outcome->recovery_ms = *(*scene_.clients)[fault.client]->revived_ms() - begun_ms_;
    outcome->recovered_pushes = scene_.progress->acknowledged();
  }
  return Annotate(status, fault.Describe());
}

absl::Status Injector::Dispatch(const Fault& fault, FaultOutcome* outcome) {
  switch (fault.kind) {
    case FaultKind::kKill:
      return Kill({fault.server}, fault.duration_ms);
    case FaultKind::kKillAgain:
      return KillAgain(fault);
    case FaultKind::kKillAll:
      return KillAll(fault.duration_ms);
    case FaultKind::kKillInCheckpoint:
      return KillInCheckpoint(fault, outcome);
    case FaultKind::kTerminate:
      return Terminate(fault);
    case FaultKind::kMove:
      return Move(fault, outcome);
    case FaultKind::kTear:
      return Tear(fault, outcome);
    case FaultKind::kFlip:
      return FlipInLog(fault, outcome);
    case FaultKind::kFlipFile:
      return FlipInFile(fault, outcome);
    case FaultKind::kDiskFull:
      return FillDisk(fault, outcome);
    case FaultKind::kCheckpoint:
      return Checkpoint(fault, outcome);
    case FaultKind::kStop:
      return Stop(fault);
    case FaultKind::kClient:
      return EndClient(fault);
    case FaultKind::kCut:
      scene_.cluster->ProxyOf(fault.server)->Cut();
      WatchServers({fault.server});
      return absl::OkStatus();
    case FaultKind::kCutInside:
      return CutInside(fault, outcome);
    case FaultKind::kLoseReply:
      return LoseReply(fault);
    case FaultKind::kHole:
      return Hole(fault);
    case FaultKind::kSlow:
      WatchServers({fault.server});
      return scene_.watch->Pass(fault.duration_ms);
    case FaultKind::kLose:
      return Lose(fault, outcome);
    case FaultKind::kKillInBootstrap:
      return KillInBootstrap(fault, outcome);
    case FaultKind::kZombie:
      return Zombie(fault, outcome);
    case FaultKind::kPartition:
      return Partition(fault);
    case FaultKind::kSlowBetween:
      return SlowBetween(fault);
    case FaultKind::kCutBetween:
      return CutBetween(fault);
    case FaultKind::kReshard:
      return Reshard(fault, outcome);
    case FaultKind::kDrain:
      return Drain(fault, outcome);
  }
  return absl::OkStatus();
}

absl::Status Injector::AwaitRecovery() {
  const absl::Status status = scene_.watch->Await([&] { return scene_.progress->seen_ms().has_value(); },
                                                  "an acknowledgement on each shard that was met");
  if (absl::IsDeadlineExceeded(status)) {
    return Annotate(status, absl::StrCat("none came on shards ", absl::StrJoin(scene_.progress->missing(), ", ")));
  }
  LODESTONE_RETURN_IF_ERROR(status);
  for (uint32_t server = 0; server < scene_.cluster->servers(); ++server) {
    LODESTONE_RETURN_IF_ERROR(
        scene_.watch->Await([&] { return !scene_.cluster->Runs(server) || scene_.cluster->Serves(server); },
                            absl::StrCat("ps ", server, " to take part again")));
  }
  return absl::OkStatus();
}

absl::Status Injector::Kill(const std::vector<uint32_t>& servers, int64_t away_ms) {
  for (const uint32_t server : servers) scene_.cluster->Kill(server);
  WatchServers(servers);
  LODESTONE_RETURN_IF_ERROR(scene_.watch->Pass(away_ms));
  for (const uint32_t server : servers) LODESTONE_RETURN_IF_ERROR(scene_.cluster->Start(server));
  return absl::OkStatus();
}

absl::Status Injector::KillAll(int64_t away_ms) {
  std::vector<uint32_t> all(scene_.cluster->servers());
  for (uint32_t server = 0; server < all.size(); ++server) all[server] = server;
  return Kill(all, away_ms);
}

absl::Status Injector::KillAgain(const Fault& fault) {
  LODESTONE_RETURN_IF_ERROR(Kill({fault.server}, fault.duration_ms));
  for (uint32_t i = 0; i < fault.times; ++i) {
    LODESTONE_RETURN_IF_ERROR(scene_.watch->Pass(static_cast<int64_t>(RandomBits(fault.random, i) % kStartMs)));
    LODESTONE_RETURN_IF_ERROR(Kill({fault.server}, 0));
  }
  return absl::OkStatus();
}

absl::Status Injector::KillInCheckpoint(const Fault& fault, FaultOutcome* outcome) {
  CheckpointCall call(scene_.cluster->PortOf(fault.server));
  LODESTONE_RETURN_IF_ERROR(scene_.watch->Pass(static_cast<int64_t>(fault.random % 40)));
  if (call.done()) outcome->note = absl::StrCat("the checkpoint was over: ", call.Result().ToString());
  return Kill({fault.server}, fault.duration_ms);
}

absl::Status Injector::Checkpoint(const Fault& fault, FaultOutcome* outcome) {
  CheckpointCall call(scene_.cluster->PortOf(fault.server));
  WatchServers({fault.server});
  LODESTONE_RETURN_IF_ERROR(scene_.watch->Await([&] { return call.done(); }, "the end of a checkpoint"));
  const absl::Status status = call.Result();
  if (!absl::IsUnavailable(status)) return status;
  outcome->note = status.ToString();  // Another one was being written.
  return absl::OkStatus();
}

absl::Status Injector::Terminate(const Fault& fault) {
  PsCluster* const cluster = scene_.cluster;
  cluster->Terminate(fault.server);
  LODESTONE_RETURN_IF_ERROR(scene_.watch->Await([&] { return !cluster->Runs(fault.server); }, "an orderly end"));
  WatchServers({fault.server});
  if (cluster->OutcomeOf(fault.server) != "ended") {
    return absl::InternalError(absl::StrCat("ps ", fault.server, " ", cluster->OutcomeOf(fault.server)));
  }
  return cluster->Start(fault.server);
}

absl::Status Injector::Move(const Fault& fault, FaultOutcome* outcome) {
  if (fault.server == 0) {  // There is no other ps.
    outcome->carried_out = false;
    return absl::OkStatus();
  }
  PsCluster* const cluster = scene_.cluster;
  cluster->Kill(fault.server);
  WatchServers({fault.server});
  LODESTONE_RETURN_IF_ERROR(cluster->MoveAddress(fault.server));
  cluster->SetLinks(fault.link);
  return cluster->Start(fault.server);
}

absl::StatusOr<std::string> Injector::ChooseSegment(const Fault& fault) const {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<SegmentFile> files,
                             NewestSegments(scene_.cluster->DataFolder(fault.server) + "/log"));
  return files[RandomBits(fault.random, 1) % files.size()].path;
}

absl::Status Injector::Tear(const Fault& fault, FaultOutcome* outcome) {
  scene_.cluster->Kill(fault.server);
  WatchServers({fault.server});
  LODESTONE_ASSIGN_OR_RETURN(const std::string path, ChooseSegment(fault));
  LODESTONE_ASSIGN_OR_RETURN(const std::optional<std::string> torn, TearTail(path, fault.random));
  outcome->carried_out = torn.has_value();
  outcome->note = torn.value_or(absl::StrCat(path, " was torn already"));
  return scene_.cluster->Start(fault.server);
}

absl::Status Injector::FlipInLog(const Fault& fault, FaultOutcome* outcome) {
  scene_.cluster->Kill(fault.server);
  WatchServers({fault.server});
  LODESTONE_ASSIGN_OR_RETURN(const std::string path, ChooseSegment(fault));
  const absl::StatusOr<FlippedBit> bit = ChooseBit(path, fault.random);
  if (absl::IsNotFound(bit.status())) {
    outcome->carried_out = false;
    outcome->note = std::string(bit.status().message());
    return scene_.cluster->Start(fault.server);
  }
  LODESTONE_RETURN_IF_ERROR(bit.status());
  outcome->note = absl::StrCat(path, ": a bit at offset ", bit->offset);
  LODESTONE_ASSIGN_OR_RETURN(const bool refused,
                             StartWithFlipped(fault.server, *bit, absl::StrCat("offset ", bit->record)));
  if (refused) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("ps ", fault.server, " took the record at offset ", bit->record, " of ", path,
                                          " though the bit at offset ", bit->offset, " was flipped"));
}

absl::Status Injector::FlipInFile(const Fault& fault, FaultOutcome* outcome) {
  scene_.cluster->Kill(fault.server);
  WatchServers({fault.server});
  const std::vector<std::string> files = OtherFiles(scene_.cluster->DataDirOf(fault.server), fault.server);
  outcome->carried_out = !files.empty();
  if (files.empty()) return scene_.cluster->Start(fault.server);
  LODESTONE_ASSIGN_OR_RETURN(const FlippedBit bit,
                             ChooseBitAnywhere(files[RandomBits(fault.random, 2) % files.size()], fault.random));
  outcome->note = absl::StrCat(bit.path, ": a bit at offset ", bit.offset);
  LODESTONE_ASSIGN_OR_RETURN(const bool refused, StartWithFlipped(fault.server, bit, ""));
  absl::StrAppend(&outcome->note, refused ? ", refused" : ", and it did without");
  return absl::OkStatus();
}

absl::StatusOr<bool> Injector::StartWithFlipped(uint32_t server, const FlippedBit& bit, const std::string& where) {
  PsCluster* const cluster = scene_.cluster;
  LODESTONE_RETURN_IF_ERROR(Flip(bit));
  absl::Status status = cluster->Start(server);
  cluster->SetMayEnd(server, true);
  if (status.ok()) {
    status = scene_.watch->Await([&] { return !cluster->Runs(server) || cluster->Serves(server); },
                                 "a decision about a damaged file");
  }
  const absl::Status back = Flip(bit);  // In any case; but the ps may have thrown it away.
  LODESTONE_RETURN_IF_ERROR(status);
  if (cluster->Runs(server)) {
    cluster->SetMayEnd(server, false);
    if (!back.ok() && !absl::IsNotFound(back)) return back;
    return false;
  }
  LODESTONE_RETURN_IF_ERROR(back);
  const std::string& outcome = cluster->OutcomeOf(server);
  const std::string name = std::filesystem::path(bit.path).filename().string();
  if (!absl::StrContains(outcome, "exit code") || !absl::StrContains(outcome, name) ||
      !absl::StrContains(outcome, where)) {
    return absl::InternalError(absl::StrCat("ps ", server, " had to name ", bit.path, where.empty() ? "" : " and ",
                                            where, " where a bit was flipped, but ", outcome));
  }
  LODESTONE_RETURN_IF_ERROR(cluster->Start(server));
  return true;
}

absl::Status Injector::TakeRoom(const Fault& fault) {
  const uint64_t bytes = fault.random % kFileBytesMax;
  if (scene_.disk != nullptr) return scene_.disk->Fill(bytes);
  LimitFiles(scene_.cluster->PidOf(fault.server), bytes);
  return absl::OkStatus();
}

absl::Status Injector::GiveRoom(const Fault& fault) {
  if (scene_.disk != nullptr) return scene_.disk->Free();
  if (scene_.cluster->Runs(fault.server)) LimitFiles(scene_.cluster->PidOf(fault.server), RLIM_INFINITY);
  return absl::OkStatus();
}

absl::Status Injector::FillDisk(const Fault& fault, FaultOutcome* outcome) {
  LODESTONE_RETURN_IF_ERROR(TakeRoom(fault));
  std::string error;
  const int64_t until_ms = scene_.watch->NowMs() + fault.duration_ms;
  const absl::Status status = scene_.watch->Await(
      [&] {
        const auto answer = scene_.cluster->StatusOf(fault.server, kStatusTimeoutMs);
        if (answer.ok()) error = answer->storage().log_error();
        return scene_.watch->NowMs() >= until_ms;
      },
      "the end of a full disk");
  LODESTONE_RETURN_IF_ERROR(GiveRoom(fault));  // In any case.
  WatchServers({fault.server});
  outcome->note = error.empty() ? "it was not noticed" : error;
  return status;
}

absl::Status Injector::Stop(const Fault& fault) {
  scene_.cluster->Signal(fault.server, SIGSTOP);
  WatchServers({fault.server});
  const absl::Status status = scene_.watch->Pass(fault.duration_ms);
  if (scene_.cluster->Runs(fault.server)) scene_.cluster->Signal(fault.server, SIGCONT);
  return status;
}

absl::Status Injector::EndClient(const Fault& fault) {
  PushingClient* const client = (*scene_.clients)[fault.client].get();
  client->Die(fault.times + 1, static_cast<uint32_t>(fault.random % (fault.times + 1)));
  return scene_.watch->Await([&] { return client->revived_ms().has_value(); },
                             absl::StrCat("the next client of slot ", fault.client));
}

absl::Status Injector::CutInside(const Fault& fault, FaultOutcome* outcome) {
  TcpProxy* const proxy = scene_.cluster->ProxyOf(fault.server);
  const uint64_t cut = proxy->traffic().cut;
  const bool replies = fault.direction == TcpProxy::Direction::kReplies;
  proxy->CutAfter(fault.direction, replies ? 1 + fault.bytes % kReplyBytesMax : fault.bytes);
  const int64_t until_ms = scene_.watch->NowMs() + kMessageWaitMs;
  const absl::Status status = scene_.watch->Await(
      [&] { return proxy->traffic().cut > cut || scene_.watch->NowMs() >= until_ms; }, "a message to cut");
  outcome->carried_out = proxy->traffic().cut > cut;  // Few come to a ps that owns nothing.
  proxy->CutAfter(fault.direction, 0);
  WatchServers({fault.server});
  return status;
}

absl::Status Injector::LoseReply(const Fault& fault) {
  TcpProxy* const proxy = scene_.cluster->ProxyOf(fault.server);
  TcpProxy::Link link = fault.link;
  link.holds_replies = true;
  proxy->SetLink(link);
  const int64_t until_ms = scene_.watch->NowMs() + kReplyWaitMs;
  const uint64_t wanted = 1 + fault.bytes % kReplyBytesMax;
  const absl::Status status = scene_.watch->Await(
      [&] { return proxy->traffic().replies_held >= wanted || scene_.watch->NowMs() >= until_ms; }, "a reply to lose");
  proxy->Cut();
  proxy->SetLink(fault.link);
  WatchServers({fault.server});
  return status;
}

absl::Status Injector::Hole(const Fault& fault) {
  TcpProxy* const proxy = scene_.cluster->ProxyOf(fault.server);
  TcpProxy::Link link = fault.link;
  (fault.direction == TcpProxy::Direction::kRequests ? link.holds_requests : link.holds_replies) = true;
  proxy->SetLink(link);
  WatchServers({fault.server});
  const absl::Status status = scene_.watch->Pass(fault.duration_ms);
  proxy->Cut();
  proxy->SetLink(fault.link);
  return status;
}

}  // namespace lodestone::chaos
