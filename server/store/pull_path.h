// The way of a pull through a ps: checked, dense blocks referenced where they lie, rows read by the executors of their
// shards, answered.
//
// Thread-safe. Callbacks run on the calling thread, an executor's, the background one or, where reads wait to be
// durable, a log's or a follower's stream's, and must be quick.
//
// Ownership: slices of an answer keep what they point into alive; all pointers must outlive the executors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time_source.h"
#include "grpcpp/support/slice.h"
#include "proto/admin.pb.h"
#include "proto/parameter_server.pb.h"
#include "server/store/rate_meter.h"
#include "server/store/request_payload.h"

namespace lodestone::server {

class Catalog;
class CommitLog;
class ServingGate;
class Sessions;
class ShardSet;
class StepCloser;
class StepWaits;

class PullPath {
 public:
  // All must outlive the executors.
  struct Services {
    const TimeSource* time = nullptr;
    const ServingGate* gate = nullptr;
    ShardSet* shards = nullptr;
    CommitLog* log = nullptr;
    const Catalog* catalog = nullptr;
    Sessions* sessions = nullptr;
    StepWaits* waits = nullptr;
    StepCloser* closer = nullptr;
  };
  // With `committed_only` a pull is answered once nothing that it read could be taken back by a death; it then waits
  // for logs and followers as a push does. Otherwise it may read what is applied and not yet acknowledged.
  PullPath(const Services& services, bool committed_only) : services_(services), committed_only_(committed_only) {}

  // The answer without its payload, and the payload as slices in order.
  struct Values {
    v1::PullResponse header;
    std::vector<grpc::Slice> payload;
  };
  // Reads values. `header.payload()` is empty: the keys are in `payload`. Errors as ParameterServer.Pull's.
  using Done = std::function<void(absl::StatusOr<Values>)>;
  void Pull(v1::PullRequest header, RequestPayload payload, Done done);

  // The same in two steps: the checks, and, later, the reading of a pull that has passed them.
  struct Call;
  absl::StatusOr<std::shared_ptr<Call>> Check(v1::PullRequest header, RequestPayload payload);
  void Read(const std::shared_ptr<Call>& call, Done done);
  // Bytes of the values in its answer.
  static size_t AnswerBytes(const Call& call);

  // About once a second, for the status: measures the rate.
  void SampleRate(int64_t now_ms) { rate_.Sample(now_ms, pulls_.load()); }
  // Sets what is about pulls.
  void FillStatus(v1::ServerStatus* status) const;

 private:
  void Run(const std::shared_ptr<Call>& call);
  // Whether blocks are read by the executors of their shards, too.
  bool ReadsBlocksInTurn(const Call& call) const;
  // On executor `e`: whether its shards have the steps that the pull is to see. If not, the share goes on, or ends,
  // when they have.
  bool HasSteps(const std::shared_ptr<Call>& call, size_t e, int64_t taken_ns);
  // On executor `e`: reads its share, and ends it once that may be shown.
  void RunShare(const std::shared_ptr<Call>& call, size_t e);
  void EndShare(Call* call, int64_t taken_ns, const absl::Status& status);
  // RESOURCE_EXHAUSTED if an executor that the pull needs has too much to do.
  absl::Status CheckQueues(const Call& call) const;
  // Answers for each part: blocks by reference, and for rows where in the answer they will lie.
  void PrepareAnswer(Call* call);
  // Reads blocks on any thread. Refuses the pull if their shard is not owned then, or given away meanwhile.
  void ReadBlocksAtOnce(Call* call, size_t part, size_t slice);
  // Reads the blocks of a part into the answer's slices from `slice` on. On the shard's executor if ReadsBlocksInTurn.
  void ReadBlocks(Call* call, size_t part, size_t slice);
  // On executor `e`: reads the rows of its shards.
  void ReadRows(Call* call, size_t e);
  // `taken_ns`: when the executor that was done last took its share; 0 if there is none.
  void Finish(Call* call, int64_t taken_ns);

  // Constant after construction.
  const Services services_;
  const bool committed_only_;

  // Synchronise themselves.
  std::atomic<uint64_t> pulls_{0};
  std::atomic<uint64_t> bytes_{0};
  RateMeter rate_;
};

}  // namespace lodestone::server
