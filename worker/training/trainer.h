// The training loop of one worker over context.data->train: batches come with their rows from a pipeline, gradients
// leave asynchronously, dense values are refreshed by broadcasts.
//
// A step: take the next batch; take over what broadcasts brought; compute; push. Reading of values, computing and
// pushing of different steps overlap, so a gradient may be older than the values it is applied to; how much is
// measured, and kept at what train.delay_max allows (lead.h). While nothing may overlap, each step's push reads what
// the next step needs in the same exchange, and broadcasts are not subscribed to. Where a device computes, it has the
// next step to compute while a step's gradients are packed and handed over, if steps overlap and
// worker.prefetch_batches is not 0.
//
// Where the tables have steps (sync, tokens), rows and dense values are pulled for each step instead, of the step that
// the batch is leased for, and the gradients are a contribution to it; of sync no batch is read ahead but of the same
// step. Where their staleness is bounded, a batch is begun once no other worker is too far behind (clock_gate.h); that
// may change while it trains (live_order.h). When steps are to begin or to end, training pauses (RangeFeed), and
// another trainer goes on from where this one has come to.
//
// Not thread-safe. The context's objects must outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/client/types.h"
#include "worker/data/epoch_batches.h"
#include "worker/metrics/delay_counts.h"
#include "worker/metrics/loss_trend.h"
#include "worker/metrics/step_stages.h"
#include "worker/training/batch_pipeline.h"
#include "worker/training/lead.h"
#include "worker/training/live_order.h"
#include "worker/training/step_outputs.h"
#include "worker/training/training_context.h"

namespace lodestone::worker {

class PushTally;

class Trainer {
 public:
  struct Result {
    uint64_t steps = 0;
    uint64_t samples = 0;
    double seconds = 0;                   // From the first step to the last push's acknowledgement.
    uint64_t samples_total = 0;           // That were to be trained on; of leased ones, those that were.
    double staleness_pushes = 0;          // Mean over the pushes of the others' part of the delay.
    std::vector<DelaySummary> delays;     // By table.
    std::string loss_complaint;           // LossTrend::Complaint.
    StageSeconds stages{};                // Where the time of the steps went.
    bool stopped = false;                 // By `stop`, before the last step.
    bool stopped_early = false;           // Because the coordinator said so, before the last step.
    bool paused = false;                  // It is to go on by another order of steps.
    v1::ConsistencyProgress consistency;  // What was observed of it; of async nothing.
  };

  // What training has come to that another trainer goes on with.
  struct SoFar {
    uint64_t steps = 0;
    uint64_t samples = 0;
    uint64_t position = 0;  // PositionAfter of the batch furthest on.
    Clock clock = 0;        // The greatest that it has begun a step with, where staleness was bounded.
    StageSeconds stages{};
    std::shared_ptr<PushTally> tally;  // Null: it has not begun.
    std::shared_ptr<LossTrend> loss_trend;
    int64_t start_ms = 0;
  };

  explicit Trainer(const TrainingContext& context) : Trainer(context, {}) {}
  Trainer(const TrainingContext& context, SoFar so_far);
  ~Trainer();

  // The batches of `samples` samples that a worker trains on; where ranges are leased, those of worker 0 are all
  // workers'.
  static EpochBatches BatchesOf(const v1::Config& config, uint64_t samples, uint32_t worker);

  // Trains for train.epochs and waits until all pushes are acknowledged. Call once. Errors: of calls, of the client's
  // health, and FAILED_PRECONDITION if the loss is no longer a number.
  absl::StatusOr<Result> Train();
  // After Train.
  const SoFar& so_far() const { return so_far_; }

 private:
  // The first trainer of a training begins it.
  void Begin(uint64_t samples_total);
  // Gives the batches: those of `ranges`, or else of `batches`, each once it may be begun.
  BatchPipeline::Source SourceOf(EpochBatches* batches);

  // A step whose gradients are to be pushed.
  struct Computed {
    const BatchPipeline::Item* item = nullptr;  // Null: there is none.
    uint64_t step = 0;
    ReadVersions read_versions;
    uint64_t steps = 0;  // That the values had at least, where tables have steps.
    std::shared_ptr<const StepOutputs> outputs;
  };

  // `start_ns`: when the trainer began to wait for the batch.
  absl::Status Step(BatchPipeline* pipeline, const BatchPipeline::Item& item, int64_t start_ns);
  // Adds what a step has spent in each stage.
  void CountStages(const std::array<int64_t, kStages>& ns);
  // Samples of the whole training up to and with this batch of so many.
  uint64_t PositionAfter(const BatchPipeline::Assignment& of, size_t samples) const;
  // What drops units of a step's hidden layers: of a leased batch the same, whichever worker computes it.
  uint64_t DropoutSeed(const BatchPipeline::Assignment& of) const;
  // Validates the model, if that is due and this worker's to do.
  absl::Status MaybeValidate(BatchPipeline* pipeline);
  // Takes over the newest dense values that the lead asks for, or those of the step that the batch is of.
  absl::Status Refresh(uint64_t acknowledged, const BatchPipeline::Item& item);
  // What has been observed of the order of steps.
  v1::ConsistencyProgress Observed() const;
  // A step's batches do not wait for the measured delay, which they have none of.
  uint32_t BatchesAhead() const { return order_.first().has_sync() ? prefetch_max_ : lead_.lead().batches_ahead; }
  // Passes on what lead_ says.
  absl::Status ApplyLead(BatchPipeline* pipeline);
  // What its push is of.
  StepOrigin OriginOf(const Computed& computed) const;
  // Hands the gradients of computed_ over, if there are any, and gives its batch back. Returns how many nanoseconds
  // that took.
  absl::StatusOr<int64_t> Push(BatchPipeline* pipeline);
  // Pushes gradients of computed_ and reads, in one exchange with each ps, the dense values and the next batch's rows,
  // which lack nothing then that this worker has pushed. Waits for it.
  absl::Status PushAndRead(BatchPipeline* pipeline, std::span<const DenseGradient> dense,
                           std::span<const RowGradients> rows, const std::function<void(const PushResult&)>& pushed);
  // The same outside of steps.
  absl::Status PushAlone(BatchPipeline* pipeline);

  const TrainingContext context_;
  LiveOrder order_;
  const uint32_t prefetch_max_;  // Batches, by configuration and order_.
  LeadControl lead_;
  const bool may_push_later_;  // While the next step is computed, if no step waits.
  Clock dense_lowest_ = 0;     // The others' lowest clock when the dense values were pulled last.
  std::vector<const TableHandle*> row_tables_;

  SoFar so_far_;
  Computed computed_;
  uint64_t plan_samples_ = 0;  // Of the whole training: this worker's, or with ranges that of all.
  uint64_t plan_batches_ = 0;
};

}  // namespace lodestone::worker
