// Carries out faults on a cluster under load, each until the cluster goes on as before.
//
// Single-threaded, as PsCluster.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "tests/chaos/disk_damage.h"
#include "tests/chaos/progress.h"
#include "tests/chaos/ps_cluster.h"
#include "tests/chaos/pushing_client.h"
#include "tests/chaos/replicas.h"
#include "tests/chaos/schedule.h"
#include "tests/chaos/small_disk.h"
#include "tests/chaos/watch.h"

namespace lodestone::chaos {

// What became of a fault.
struct FaultOutcome {
  int64_t recovery_ms = 0;  // From its begin to the first acknowledgement, by each ps it met, of what was sent after.
  uint64_t recovered_pushes = 0;  // How many were acknowledged, since the run began, when it was over.
  // Of a ps whose shards went to others: from the last acknowledgement on any of them before to when all had one again.
  std::optional<int64_t> outage_ms;
  bool kept = false;        // It was to lose its disk, but a shard had no follower in sync: it came back with it.
  std::string note;         // What else there is to say; usually nothing.
  bool carried_out = true;  // It was possible.
};

class Injector {
 public:
  struct Scene {
    PsCluster* cluster = nullptr;
    Watch* watch = nullptr;
    Progress* progress = nullptr;
    const std::vector<std::unique_ptr<PushingClient>>* clients = nullptr;
    SmallDisk* disk = nullptr;  // That the ps' files are on; null: it cannot be filled.
    Replicas* replicas = nullptr;
    int64_t lease_ms = 0;
  };
  // `owners` are those of a fresh cluster, by shard.
  Injector(const Scene& scene, std::vector<uint32_t> owners) : scene_(scene), owners_(std::move(owners)) {}

  // Returns when it is over and the cluster has recovered. Errors: those of Watch, and INTERNAL if something did not
  // behave as it must.
  absl::Status Inject(const Fault& fault, FaultOutcome* outcome);

  // kill -9 of all ps and a new start: after it, nothing that was sent before is under way any more.
  absl::Status KillAll(int64_t away_ms);

  // Waits until every shard has two copies that count. REQUIRES: shards have followers.
  absl::Status AwaitInSync();

 private:
  absl::Status Dispatch(const Fault& fault, FaultOutcome* outcome);
  absl::Status Kill(const std::vector<uint32_t>& servers, int64_t away_ms);
  absl::Status KillAgain(const Fault& fault);
  absl::Status KillInCheckpoint(const Fault& fault, FaultOutcome* outcome);
  absl::Status Terminate(const Fault& fault);
  absl::Status Move(const Fault& fault, FaultOutcome* outcome);
  absl::Status Tear(const Fault& fault, FaultOutcome* outcome);
  absl::Status FlipInLog(const Fault& fault, FaultOutcome* outcome);
  absl::Status FlipInFile(const Fault& fault, FaultOutcome* outcome);
  // Starts the ps with the bit flipped, and once more with the bit back if it ended then; true if it did. It must name
  // the file and, if there is `where` in it, that.
  absl::StatusOr<bool> StartWithFlipped(uint32_t server, const FlippedBit& bit, const std::string& where);
  absl::Status FillDisk(const Fault& fault, FaultOutcome* outcome);
  // Takes the room away that the files of a ps may take, and gives it back.
  absl::Status TakeRoom(const Fault& fault);
  absl::Status GiveRoom(const Fault& fault);
  absl::Status Checkpoint(const Fault& fault, FaultOutcome* outcome);
  absl::Status Stop(const Fault& fault);
  absl::Status EndClient(const Fault& fault);
  absl::Status CutInside(const Fault& fault, FaultOutcome* outcome);
  absl::Status LoseReply(const Fault& fault);
  absl::Status Hole(const Fault& fault);

  // injector_replicas.cc.
  absl::Status Lose(const Fault& fault, FaultOutcome* outcome);
  absl::Status KillInBootstrap(const Fault& fault, FaultOutcome* outcome);
  absl::Status Zombie(const Fault& fault, FaultOutcome* outcome);
  absl::Status Partition(const Fault& fault);
  absl::Status SlowBetween(const Fault& fault);
  absl::Status CutBetween(const Fault& fault);
  // Kills the ps and waits until others acknowledge for its shards. False: that never comes, because another one has no
  // follower in sync; then it is started again as it was.
  absl::StatusOr<bool> FailOver(uint32_t server, FaultOutcome* outcome);
  // Waits until a ps that was started follows others, if it does.
  absl::Status AwaitBootstrap(uint32_t server);
  // Waits until every shard has two copies. Returns the ps that the fault is for, or another one if that owns nothing,
  // but never ps 0: if that owns everything it dies first, and comes back.
  absl::StatusOr<uint32_t> ChooseOwner(const Fault& fault);

  // injector_moves.cc.
  absl::Status Reshard(const Fault& fault, FaultOutcome* outcome);
  absl::Status Drain(const Fault& fault, FaultOutcome* outcome);
  // Undoes a drain of the ps, and waits until it has its part of the shards.
  absl::Status Fill(uint32_t server);
  std::string CoordinatorAddress() const;
  absl::Status AwaitMoves();

  // Asks who owns what.
  void LearnOwners();
  std::vector<ShardId> ShardsOf(const std::vector<uint32_t>& servers) const;
  // What was owned by these ps when the fault came is to be acknowledged again from now on.
  void WatchServers(const std::vector<uint32_t>& servers);

  // A segment of the log of a ps that does not run.
  absl::StatusOr<std::string> ChooseSegment(const Fault& fault) const;
  // Waits until what the fault met is acknowledged again, and all ps that run take part.
  absl::Status AwaitRecovery();

  const Scene scene_;
  std::vector<uint32_t> owners_;  // By shard: as LearnOwners found them last.
  int64_t begun_ms_ = 0;          // When the fault came.
};

}  // namespace lodestone::chaos
