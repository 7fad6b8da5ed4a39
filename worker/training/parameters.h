// A worker's copy of the dense tables. Broadcasts write what has changed into a second, staged copy; the trainer takes
// it over between two steps, so that the values do not move while a step computes.
//
// While it is subscribed, broadcasts are the rule and pulls the fallback: where none has come for a while, or where the
// copy would lack too many of the worker's own pushes, Refresh pulls. A worker that reads all values with each push
// needs no broadcasts, nor does one with tables that have steps, which are pulled for each step. Own pushes are never
// applied here; they come back from the servers.
//
// Thread safety: for one thread. The client's threads write the staged copy only.
//
// What the client keeps of a subscription is shared with it, so either may be destroyed first. The client must live
// during every call here.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "kernels/backend.h"
#include "kernels/cpu_backend.h"
#include "kernels/scratch_array.h"
#include "worker/client/client.h"

namespace lodestone::worker {

class Parameters {
 public:
  struct Options {
    // A shard's values that nothing has confirmed for longer than this, and than twice the time that the last read took
    // (a slow link would bring nothing else), at most ten times this, are pulled.
    int64_t refresh_ms_max = 2000;
    // So are values that lack more than about this many of this worker's acknowledged pushes: gradients computed again
    // and again from the same values add up to one huge step.
    uint64_t own_pushes_missing_max = 8;
    const TimeSource* time = nullptr;
    // Gives the values' memory, from which a device copies them. Must outlive this.
    kernels::Backend* backend = kernels::Cpu();
  };

  // `tables` are dense and must outlive this.
  Parameters(Client* client, std::vector<const TableHandle*> tables, const Options& options);
  ~Parameters();

  // Pulls all values. Broadcasts do not come yet.
  absl::Status Start();
  // Whether broadcasts come from now on. A subscription that begins brings all values once.
  absl::Status SetSubscribed(bool subscribed);
  // Takes over what broadcasts have brought, and pulls if they brought too little. Between two steps.
  // `acknowledged_pushes` counts this worker's pushes so far that held gradients of all tables.
  absl::Status Refresh(uint64_t acknowledged_pushes);
  // The same, but pulls wherever the values are not of the versions `wanted` (by shard) at least.
  absl::Status RefreshTo(uint64_t acknowledged_pushes, const ShardVersions& wanted);
  // From now on; see Options.
  void SetOwnPushesMissingMax(uint64_t pushes) { own_pushes_missing_max_ = pushes; }
  // The same for a call that also does something else: what it is to read, into the values themselves, which nothing
  // may use meanwhile; and that it has read them, at these versions.
  std::vector<DensePull> BeginRead();
  void EndRead(const ShardVersions& versions);
  // Pulls all values.
  absl::Status PullAll();
  // The same with rows beside them, in one pull, and gives the versions of all that was read. Needs no Start.
  absl::StatusOr<ShardVersions> PullAll(std::vector<RowPull> rows);
  // The same of tables with steps: waits for those that `read` wants.
  absl::StatusOr<ShardVersions> PullSteps(const StepRead& read, std::vector<RowPull> rows = {});
  // The lowest steps that the values had when they were read by PullSteps.
  uint64_t steps() const { return steps_; }

  // Values of table `i` of the constructor's: its layout.elements floats.
  const float* values(size_t i) const { return values_.data() + offset(i); }
  // All tables' values are one array of so many floats, in which table `i` begins here, a multiple of 64.
  const float* values() const { return values_.data(); }
  size_t floats() const { return values_.size(); }
  size_t offset(size_t i) const { return tables_[i].offset; }
  // Grows with every change of a value.
  uint64_t stamp() const { return stamp_; }
  // Calls range(begin, end) for ranges of that array, in order, that hold everything that has changed since the stamp
  // was `stamp`. They are few: what lies between two changes and is short belongs to one of them.
  void ForChangedSince(uint64_t stamp, absl::FunctionRef<void(size_t begin, size_t end)> range) const;
  // Of each shard, the version that the values are at least of; 0 for shards without dense values.
  const ShardVersions& versions() const { return versions_; }

  // Blocks taken over from broadcasts, and pulls of all values, so far.
  uint64_t blocks_from_broadcasts() const { return blocks_from_broadcasts_; }
  uint64_t pulls() const { return pulls_; }

 private:
  struct Table {
    const TableHandle* handle = nullptr;
    size_t offset = 0;  // In values_.
    std::vector<Version> block_versions;
    std::vector<uint64_t> block_stamps;  // stamp_ when the block last changed.
  };
  // What the client's threads write.
  class Staging;

  // Copies staged blocks that are newer than the values, and the staged versions.
  void TakeStaged();
  bool NeedsPull() const;
  // RESOURCE_EXHAUSTED if there was no memory for the values.
  absl::Status CheckMemory() const;

  Client* const client_;
  const Options options_;
  const std::shared_ptr<Staging> staging_;
  std::vector<ShardId> dense_shards_;  // Those that hold a block.

  std::vector<Table> tables_;
  kernels::ScratchArray<float> values_;  // In the host's memory.
  ShardVersions versions_;
  // Beside dense_shards_: when the shard's values were last confirmed, and own pushes acknowledged by then.
  std::vector<int64_t> confirmed_ms_;
  std::vector<uint64_t> confirmed_pushes_;
  uint64_t own_pushes_missing_max_;
  uint64_t acknowledged_pushes_ = 0;
  uint64_t steps_ = 0;
  int64_t read_began_ms_ = 0;
  int64_t read_took_ms_ = 0;  // The last one.
  bool subscribed_ = false;
  uint64_t stamp_ = 0;
  uint64_t blocks_from_broadcasts_ = 0;
  uint64_t pulls_ = 0;
};

}  // namespace lodestone::worker
