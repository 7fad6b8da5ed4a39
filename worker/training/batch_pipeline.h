// Batches on their way: a thread of its own reads samples and counts their keys, and asks for their rows some batches
// ahead of the one that is being computed. Another batch or more is read and counted, so that its rows can be asked for
// as soon as that is due: with nothing ahead, when the batch before is given back, or with its push.
//
// Thread safety: Next and Release belong to one thread, the consumer. The client's threads deliver rows.
//
// The pipeline owns its batches and their rows. Its destructor waits for the rows that are under way; client, data and
// handles must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "kernels/backend.h"
#include "kernels/cpu_backend.h"
#include "kernels/scratch_array.h"
#include "worker/client/client.h"
#include "worker/data/dataset.h"
#include "worker/model/device_batch.h"
#include "worker/model/keyed_batch.h"

namespace lodestone::worker {

class BatchPipeline {
 public:
  // The samples of a batch, and the step that it is.
  struct Assignment {
    std::vector<uint64_t> indices;
    uint64_t number = 0;    // Over all epochs, of all workers where these lease ranges.
    RangeSession range;     // The leased range, and
    Sequence sequence = 0;  // the place in it, from 1; none: the batch is the worker's own.
    // The batch's place among those of a synchronous step; its rows are read for that step. `range` is none then, but
    // for the number by which the feed knows the batch.
    std::optional<v1::Contribution> contribution;
    Clock clock = 0;  // The worker's clock that the step leads to (ClockGate); 0: staleness is not bounded.
  };

  // A batch with the rows of its keys.
  struct Item {
    KeyedBatch keyed;
    std::vector<kernels::ScratchArray<float>> rows;  // Per row table: [keys of its group, dim].
    ShardVersions versions;                          // At which the rows were read; empty without row tables or keys.
    uint64_t steps = 0;                              // And the steps that they had, where the tables have steps.
    std::unique_ptr<DeviceBatch> device;             // On its way to the device; null if the CPU computes.
    Assignment assignment;                           // What it is of.
  };

  // Says of what the next batch is; false after the last. Called by the pipeline's thread. An error is the pipeline's.
  using Source = std::function<absl::StatusOr<bool>(Assignment* next)>;

  struct Options {
    uint32_t ahead = 0;       // The rows of at most so many batches are pulled beyond those that the consumer holds,
    uint32_t less_ahead = 0;  // and so many fewer until SetAhead says otherwise,
    uint32_t held_max = 1;    // of which there may be this many, or the next.
    uint32_t read_ahead = 1;  // So many more batches are read and counted; at least 1.
    kernels::Backend* backend = kernels::Cpu();  // Computes them; must outlive the pipeline.
    bool ordered = false;                        // See DeviceBatch.
    FieldGroups groups = {};                     // Of the fields and row tables.
  };
  // Batches are on their way to the backend as soon as their rows have come.
  BatchPipeline(Client* client, const Dataset* data, std::vector<const TableHandle*> row_tables, Source source,
                const Options& options);
  ~BatchPipeline();
  BatchPipeline(const BatchPipeline&) = delete;
  BatchPipeline& operator=(const BatchPipeline&) = delete;

  // The next batch in order, with all of its rows; null after the last. Waits for it. An error is final.
  // REQUIRES: fewer than held_max are held.
  absl::StatusOr<const Item*> Next();
  // Whether Next would not wait.
  bool Ready();
  // Gives back the first of the batches that are held, and asks for the rows that are due then, at once.
  void Release();
  // A pull of the rows of one batch, for a call that also does something else.
  struct RowsRead {
    std::vector<RowPull> pulls;
    std::function<void(absl::Status, ShardVersions)> done;  // Must be called once, from any thread.
  };
  // That of the next batch, so that it can go with the push of the one before; nothing if that batch is not read yet,
  // has no rows, or they have been asked for.
  std::optional<RowsRead> TakeNextRead();
  // From now on rows are pulled for `ahead` batches; at most as many as at construction.
  void SetAhead(uint32_t ahead);

  // What the last Next waited for.
  struct Waits {
    int64_t input_ns = 0;  // The reading of samples.
    int64_t rows_ns = 0;   // The rows of their keys.
  };
  const Waits& waits() const { return waits_; }

 private:
  struct Slot {
    Item item;  // Owned by the pipeline's thread between `free` and `filled`, then by the consumer.
    // Guarded by mu_.
    enum class State { kFree, kPrepared, kPulling, kFilled } state = State::kFree;
    absl::Status status;
    int64_t pull_ns = 0;  // When the pulling of its rows began.
  };

  // Whether the next batch, its failure or the end is there.
  bool ReadyLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the thread has another batch to prepare.
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the thread waits for room that there is by now. The caller wakes it, without the lock, which it takes
  // first.
  bool TakeWake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();
  absl::Status Prepare(Slot* slot, bool* end);
  // Asks for the rows of the batches that are prepared and due, on the calling thread.
  void PullDue();
  void Pull(Slot* slot);
  std::vector<RowPull> PullsOf(Slot* slot);
  void TakeRows(Slot* slot, const absl::Status& status, ShardVersions versions, uint64_t steps);

  // Constant after construction.
  Client* const client_;
  const Dataset* const data_;
  const std::vector<const TableHandle*> row_tables_;
  const Source source_;
  const uint32_t ahead_max_;
  const uint32_t held_max_;
  const uint32_t read_ahead_;
  const FieldGroups groups_;
  std::vector<Slot> slots_;

  // Owned by the pipeline's thread.
  KeyIndexer indexer_;
  // Owned by the consumer.
  Waits waits_;

  Mutex mu_;
  CondVar room_;    // The thread waits for it,
  CondVar filled_;  // and the consumer for this.
  bool thread_waits_ ABSL_GUARDED_BY(mu_) = false;
  bool consumer_waits_ ABSL_GUARDED_BY(mu_) = false;
  uint32_t ahead_ ABSL_GUARDED_BY(mu_);
  uint64_t prepared_ ABSL_GUARDED_BY(mu_) = 0;  // Batches so far; the n-th lies in slot n mod size.
  uint64_t pulled_ ABSL_GUARDED_BY(mu_) = 0;    // Of those, whose rows have been asked for.
  uint64_t taken_ ABSL_GUARDED_BY(mu_) = 0;     // By the consumer, and of those
  uint64_t released_ ABSL_GUARDED_BY(mu_) = 0;  // so many given back.
  bool asked_ ABSL_GUARDED_BY(mu_) = false;     // The consumer waits for the next.
  bool ended_ ABSL_GUARDED_BY(mu_) = false;     // No batch comes after prepared_.
  bool stop_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mu_);  // Of the thread itself, after batch prepared_.

  std::thread thread_;
};

}  // namespace lodestone::worker
