// The decision whether a push is applied: by the verdict of its tables' guards, and by the room in memory for its new
// rows and, where it contributes to steps, for its gradients.
//
// Usually both are known without a look at the shards: there is room for all keys of the push. Otherwise the shards'
// executors are asked which keys are new, and whether the push has been applied before: what was accepted once is
// accepted again. A push without room is refused whole, unless its tables turn new keys away (Admission.when_full).
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "proto/parameter_server.pb.h"

namespace lodestone::server {

class MemoryBudget;
class ShardSet;
class Table;
struct PushCall;
struct ShardPush;

class PushAdmission {
 public:
  // Both must outlive the executors.
  PushAdmission(ShardSet* shards, const MemoryBudget* budget) : shards_(shards), budget_(budget) {}

  // True if the push, whose parts have been checked, may be applied now; its room is reserved. False: ask Decide.
  bool AdmitAtOnce(PushCall* call) const;
  // Calls `done` with OK, the room being reserved and the parts marked that take no new rows, or with why the push is
  // refused: OUT_OF_RANGE by a guard, RESOURCE_EXHAUSTED, as ShardSteps::Judge, or ABORTED if a shard is not owned. On
  // this thread or an executor's.
  void Decide(const std::shared_ptr<PushCall>& call, std::function<void(absl::Status)> done) const;

 private:
  // On the executor of the shards: fills in what Judge needs to know.
  void Ask(const v1::PushRequest& header, std::span<ShardPush* const> pushes) const;
  absl::Status Judge(PushCall* call) const;
  // Reserves room for what is to wait for a step. RESOURCE_EXHAUSTED if too much waits.
  absl::Status JudgeContribution(PushCall* call) const;
  // Reserves room for the new rows of one table in one shard.
  absl::Status MakeRoom(PushCall* call, ShardPush* push, Table* table) const;

  ShardSet* const shards_;
  const MemoryBudget* const budget_;
};

}  // namespace lodestone::server
