#include "worker/training/trainer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/awaited.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "worker/client/client.h"
#include "worker/model/model.h"
#include "worker/model/step_order.h"
#include "worker/report/progress.h"
#include "worker/report/results.h"
#include "worker/training/clock_gate.h"
#include "worker/training/compute.h"
#include "worker/training/parameters.h"
#include "worker/training/push_tally.h"
#include "worker/training/range_feed.h"
#include "worker/training/validator.h"

namespace lodestone::worker {
namespace {

// Streams of cluster.seed, so that shuffling, dropout and initial values are unrelated.
constexpr uint64_t kShuffleStream = 0x5f;
constexpr uint64_t kDropoutStream = 0xd0;
// How many of its own acknowledged pushes a worker's dense values may lack, in windows of pushes in flight: one window
// is missing anyway.
constexpr uint64_t kOwnPushesMissingWindows = 2;
// A dense gradient of so many floats is sent from where it lies; of fewer the copy costs less than what keeps them
// there.
constexpr size_t kBorrowedFloatsMin = 1024;

HistogramMetric step_metric("lodestone_worker_step_duration_seconds", "How long a step takes.");
constexpr char kStepStage[] = "lodestone_worker_step_stage_duration_seconds";
constexpr char kStepStages[] =
    "What a step's time goes by: input, waiting for samples to be read; pull, waiting for values; compute; push, "
    "handing the gradients over, which waits while too many pushes are unacknowledged. A device computes a step during "
    "the push of the one before, and compute is what takes longer than that.";
HistogramMetric stage_metrics[kStages] = {
    {kStepStage, kStepStages, {{"stage", kStageNames[0]}}},
    {kStepStage, kStepStages, {{"stage", kStageNames[1]}}},
    {kStepStage, kStepStages, {{"stage", kStageNames[2]}}},
    {kStepStage, kStepStages, {{"stage", kStageNames[3]}}},
};

// How many batches' rows are read ahead at most: of synchronous steps one, which is of the same step; with tokens so
// many that the gradients are not too old when they come.
uint32_t PrefetchMax(const v1::Config& config, const v1::Consistency& order) {
  const uint32_t batches = config.worker().prefetch_batches();
  if (order.has_sync()) return std::min(batches, 1u);
  if (order.has_tokens()) return std::min(batches, order.tokens().staleness() / 2);
  return batches;
}

uint32_t PushesInFlightMax(const v1::Config& config, const v1::Consistency& order) {
  const uint32_t pushes = std::max(1u, config.worker().pushes_in_flight_max());
  if (!order.has_tokens()) return pushes;
  return std::clamp(order.tokens().staleness() - PrefetchMax(config, order), 1u, pushes);
}

LeadControl::Options LeadOf(const v1::Config& config, const v1::Consistency& order) {
  // Where tables have steps, no delay is measured.
  const bool has_steps = order.has_sync() || order.has_tokens();
  const uint32_t delay = config.train().delay_max();
  return {.batches_ahead_max = PrefetchMax(config, order),
          .pushes_in_flight_max = PushesInFlightMax(config, order),
          .delay_max = has_steps ? std::max(1u, delay) : delay,
          .may_wait = !has_steps};
}

uint64_t WorkerSeed(const v1::Config& config, uint32_t worker, uint64_t stream) {
  return StreamSeed(StreamSeed(config.cluster().seed(), stream), worker);
}

}  // namespace

Trainer::Trainer(const TrainingContext& context, SoFar so_far)
    : context_(context),
      order_(context.client, SpecsOf(*context.tables), std::max(so_far.steps, so_far.clock),
             {.moves_up = context.ranges != nullptr,
              .retry_timeout_ms = context.config->worker().retry_timeout_ms(),
              .time = context.time,
              .stops = [this] { return context_.Stops(StopRequest::kFinish) || context_.client->StopsEarly(); }}),
      prefetch_max_(PrefetchMax(*context.config, order_.first())),
      lead_(LeadOf(*context.config, order_.first())),
      may_push_later_(!context.model->backend()->on_host() && prefetch_max_ > 0),
      so_far_(std::move(so_far)) {
  if (so_far_.tally == nullptr) {
    so_far_.tally = std::make_shared<PushTally>(*context.tables, context.client->shard_map()->shards());
  }
  so_far_.tally->SetAllCount(order_.first().has_sync());
  const PushTally::Counts counts = so_far_.tally->Get();
  lead_.BeginAfter(counts.acknowledged, counts.delay_sum, counts.staleness_sum);
  const size_t tables = context.tables->size(), dense = context.model->dense_table_count();
  LODESTONE_CHECK(tables == context.model->tables().size());
  for (size_t t = dense; t < tables; ++t) row_tables_.push_back(&(*context.tables)[t]);
}

Trainer::~Trainer() = default;

EpochBatches Trainer::BatchesOf(const v1::Config& config, uint64_t samples, uint32_t worker) {
  return EpochBatches(samples, config.train().epochs(), config.train().batch_size(),
                      WorkerSeed(config, worker, kShuffleStream), config.train().shuffle(),
                      EpochBatches::WindowOf(config));
}

void Trainer::Begin(uint64_t samples_total) {
  context_.progress->StartTraining(samples_total);
  if (context_.results != nullptr) context_.results->StartTraining(samples_total);
  const Schema& schema = context_.data->schema;
  so_far_.loss_trend = std::make_shared<LossTrend>(
      context_.model->metrics_kind(),
      schema.class_weights.empty() ? std::vector<double>(schema.class_counts.begin(), schema.class_counts.end())
                                   : schema.class_weights,
      plan_samples_, context_.model->plan().label_deviation);
  so_far_.start_ms = context_.time->NowMs();
  if (context_.validator != nullptr) context_.validator->Start();
}

absl::StatusOr<Trainer::Result> Trainer::Train() {
  const v1::Config& config = *context_.config;
  RangeFeed* const ranges = context_.ranges.get();
  EpochBatches batches = BatchesOf(config, context_.data->train->size(), context_.client->index());
  batches.ReadAheadIn(context_.data->train.get());
  const uint64_t samples_total = ranges == nullptr ? batches.total_samples() : 0;  // Nobody knows how many it gets.
  plan_samples_ = batches.total_samples();
  plan_batches_ = batches.batches();
  if (so_far_.loss_trend == nullptr) {
    Begin(samples_total);
  } else {
    context_.progress->Enter(v1::PHASE_TRAINING);
  }
  Result result;
  LODESTONE_RETURN_IF_ERROR(order_.Start());
  {
    BatchPipeline pipeline(context_.client, context_.data->train.get(), row_tables_, SourceOf(&batches),
                           {.ahead = prefetch_max_,
                            .less_ahead = prefetch_max_ - BatchesAhead(),
                            .held_max = may_push_later_ ? 2u : 1u,
                            // So that the next is there when a step as short as one of a linear model is over. Where
                            // steps have an order (train.consistency), a batch is taken when it is due.
                            .read_ahead = order_.first().kind_case() == v1::Consistency::KIND_NOT_SET ? 2u : 1u,
                            .backend = context_.model->backend(),
                            .ordered = config.worker().deterministic(),
                            .groups = context_.model->plan().groups});
    // The pipeline ends when its thread does, which may wait for a range.
    const auto stop = absl::MakeCleanup([this, ranges] {
      if (ranges != nullptr) ranges->Stop();
      order_.Stop();
    });
    LODESTONE_RETURN_IF_ERROR(ApplyLead(&pipeline));
    while (true) {
      result.stopped = context_.Stops(StopRequest::kFinish);
      if (result.stopped || context_.client->StopsEarly()) break;
      // With nothing to compute meanwhile, gradients need not wait.
      if (!pipeline.Ready()) LODESTONE_RETURN_IF_ERROR(PushAlone(&pipeline));
      const int64_t start_ns = NowNs();
      LODESTONE_ASSIGN_OR_RETURN(const BatchPipeline::Item* item, pipeline.Next());
      if (item == nullptr) {
        // It may have waited for a range, or for others, and been stopped then.
        const bool all = ranges != nullptr ? ranges->complete() : so_far_.samples >= samples_total;
        result.stopped =
            (ranges != nullptr || order_.gate() != nullptr) && !all && context_.Stops(StopRequest::kFinish);
        break;
      }
      LODESTONE_RETURN_IF_ERROR(Step(&pipeline, *item, start_ns));
      LODESTONE_RETURN_IF_ERROR(MaybeValidate(&pipeline));
    }
    LODESTONE_RETURN_IF_ERROR(PushAlone(&pipeline));
    result.paused = ranges != nullptr && ranges->paused() && !result.stopped;
    if (order_.gate() != nullptr) so_far_.clock = std::max(so_far_.clock, order_.gate()->begun());
  }
  LODESTONE_RETURN_IF_ERROR(context_.client->Flush());
  const PushTally::Counts counts = so_far_.tally->Get();
  LODESTONE_RETURN_IF_ERROR(counts.error);
  result.samples_total = ranges == nullptr ? samples_total : so_far_.samples;
  result.stopped_early = !result.stopped && context_.client->StopsEarly() &&
                         (ranges != nullptr ? !ranges->complete() : so_far_.samples < samples_total);
  if (result.stopped_early) context_.progress->StoppedEarly();
  result.steps = so_far_.steps;
  result.samples = so_far_.samples;
  result.stages = so_far_.stages;
  result.seconds = static_cast<double>(context_.time->NowMs() - so_far_.start_ms) / 1000;
  if (counts.acknowledged > 0) result.staleness_pushes = counts.staleness_sum / counts.acknowledged;
  result.delays = so_far_.tally->Delays();
  result.consistency = Observed();
  context_.progress->Delays(result.delays);
  if (result.paused) {
    LODESTONE_LOG(INFO, "trainer", "pauses, for another order of steps steps={} samples={}", so_far_.steps,
                  so_far_.samples);
    return result;
  }
  result.loss_complaint = so_far_.loss_trend->Complaint();
  LODESTONE_LOG(INFO, "trainer",
                "trained steps={} samples={} of={} seconds={:.1f} delay={:.2f} staleness_pushes={:.2f} refused={} "
                "dense_pulls={} broadcast_blocks={}",
                so_far_.steps, so_far_.samples, result.samples_total, result.seconds,
                counts.acknowledged == 0 ? 0 : counts.delay_sum / counts.acknowledged, result.staleness_pushes,
                counts.refused, context_.parameters->pulls(), context_.parameters->blocks_from_broadcasts());
  if (!result.loss_complaint.empty()) LODESTONE_LOG(WARN, "trainer", "{}", result.loss_complaint);
  return result;
}

BatchPipeline::Source Trainer::SourceOf(EpochBatches* batches) {
  return [batches, ranges = context_.ranges.get(),
          order = &order_](BatchPipeline::Assignment* next) -> absl::StatusOr<bool> {
    if (ranges == nullptr) {
      if (!batches->Next(&next->indices)) return false;
    } else {
      order->SetIdle(true);
      LODESTONE_ASSIGN_OR_RETURN(const bool more, ranges->Next(next));
      order->SetIdle(false);
      if (!more) return false;
    }
    LODESTONE_ASSIGN_OR_RETURN(const std::optional<Clock> clock, order->Await());
    next->clock = clock.value_or(0);
    return clock.has_value();
  };
}

void Trainer::CountStages(const std::array<int64_t, kStages>& ns) {
  for (size_t i = 0; i < kStages; ++i) {
    stage_metrics[i].ObserveNs(ns[i]);
    so_far_.stages[i] += 1e-9 * static_cast<double>(ns[i]);
  }
}

uint64_t Trainer::PositionAfter(const BatchPipeline::Assignment& of, size_t samples) const {
  if (context_.ranges == nullptr) return so_far_.samples + samples;
  const double share = static_cast<double>(of.number + 1) / static_cast<double>(plan_batches_);
  // Batches are of one size, give or take one.
  return static_cast<uint64_t>(std::llround(share * static_cast<double>(plan_samples_)));
}

uint64_t Trainer::DropoutSeed(const BatchPipeline::Assignment& of) const {
  const bool leased = of.sequence > 0;
  // The parts of a last step have one number.
  const uint64_t part = of.contribution.has_value() ? uint64_t{of.contribution->batch()} << 40 : 0;
  return StreamSeed(WorkerSeed(*context_.config, leased ? 0 : context_.client->index(), kDropoutStream),
                    leased ? of.number ^ part : so_far_.steps);
}

absl::Status Trainer::Step(BatchPipeline* pipeline, const BatchPipeline::Item& item, int64_t start_ns) {
  LODESTONE_RETURN_IF_ERROR(context_.client->Health());
  const PushTally::Counts counts = so_far_.tally->Get();
  LODESTONE_RETURN_IF_ERROR(counts.error);
  LODESTONE_RETURN_IF_ERROR(order_.BeginStep(so_far_.steps));
  const int64_t refresh_ns = NowNs();
  LODESTONE_RETURN_IF_ERROR(Refresh(counts.acknowledged, item));
  const int64_t compute_ns = NowNs();

  const uint64_t dropout_seed = DropoutSeed(item.assignment);
  Computed computed{&item,
                    ++so_far_.steps,
                    {context_.parameters->versions(), item.versions, order_.tells_versions()},
                    context_.parameters->steps(),
                    nullptr};
  if (item.keyed.has_keys() && !row_tables_.empty()) computed.steps = std::min(computed.steps, item.steps);
  // Nobody measures the delay of a contribution: when it is applied is not for its push to say.
  if (order_.HasSteps()) computed.read_versions = {};
  context_.compute->StartGradients(item, *context_.parameters, dropout_seed);
  absl::StatusOr<int64_t> pushed_ns = Push(pipeline);  // The step before.
  LODESTONE_ASSIGN_OR_RETURN(const double loss, context_.compute->FinishGradients());
  LODESTONE_RETURN_IF_ERROR(pushed_ns.status());
  if (!std::isfinite(loss)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the training loss is ", loss, " at step ", so_far_.steps,
                     ": training has diverged; lower the learning rate (model.optimizer), clip gradients, or "
                     "standardize the numeric features (data.numeric)"));
  }
  if (const float clip_norm = context_.config->train().clip_norm(); clip_norm > 0) {
    context_.compute->ClipGradients(clip_norm);
  }
  int64_t push_ns = *pushed_ns;
  const int64_t computed_ns = NowNs() - compute_ns - push_ns;
  const size_t samples = item.keyed.batch.size;
  const Batch& batch = item.keyed.batch;
  const float* const weights = batch.weights_or_null();
  // Of several labels: the first one's.
  context_.progress->Predicted(samples, context_.compute->predictions(), batch.labels.data(),
                               batch.label_weights.empty() ? weights : batch.label_weights.data());
  const uint64_t position = PositionAfter(item.assignment, samples);
  so_far_.position = std::max(so_far_.position, position);
  so_far_.loss_trend->Step(position, samples, batch.labels.data(), loss, weights);
  const double weight_sum = batch.weight_sum();
  computed.outputs = context_.compute->outputs();
  computed_ = std::move(computed);
  if (!may_push_later_ || lead_.lead().waits) {  // Then the batch is the pipeline's again.
    LODESTONE_ASSIGN_OR_RETURN(push_ns, Push(pipeline));
  }
  const BatchPipeline::Waits& waits = pipeline->waits();
  CountStages({waits.input_ns, waits.rows_ns + compute_ns - refresh_ns, computed_ns, push_ns});
  step_metric.ObserveNs(NowNs() - start_ns);
  so_far_.samples += samples;
  if (lead_.Update(counts.acknowledged, counts.delay_sum, counts.staleness_sum))
    LODESTONE_RETURN_IF_ERROR(ApplyLead(pipeline));
  const StepCounts step = {so_far_.steps,       so_far_.samples,      samples,          loss,          weight_sum,
                           counts.acknowledged, counts.staleness_sum, counts.delay_sum, so_far_.stages};
  if (context_.progress->Step(step)) {
    context_.progress->Delays(so_far_.tally->Delays());
    context_.progress->Consistency(Observed());
  }
  if (context_.results != nullptr) context_.results->Step(step, context_.progress->metric());
  return absl::OkStatus();
}

absl::Status Trainer::MaybeValidate(BatchPipeline* pipeline) {
  if (context_.validator == nullptr || !context_.validator->IsDue(so_far_.steps, so_far_.samples, so_far_.position)) {
    return absl::OkStatus();
  }
  LODESTONE_RETURN_IF_ERROR(PushAlone(pipeline));
  LODESTONE_RETURN_IF_ERROR(context_.client->Flush());
  return context_.validator->Validate(so_far_.steps);
}

v1::ConsistencyProgress Trainer::Observed() const {
  v1::ConsistencyProgress observed = order_.Observed();
  if (observed.kind().empty()) return observed;
  const PushTally::Counts counts = so_far_.tally->Get();
  observed.set_late(counts.late);
  observed.set_duplicates(counts.duplicates);
  if (order_.first().has_sync() && context_.ranges != nullptr) {
    observed.set_waited_seconds(context_.ranges->waited_seconds());
  }
  return observed;
}

absl::Status Trainer::Refresh(uint64_t acknowledged, const BatchPipeline::Item& item) {
  if (order_.first().has_sync()) {
    // Several batches of a step are computed from the same values.
    const uint64_t step = item.assignment.contribution->step();
    if (context_.parameters->steps() < step) {
      LODESTONE_RETURN_IF_ERROR(context_.parameters->PullSteps({.steps_min = step}).status());
    }
    context_.ranges->NoteSteps(step);
    return absl::OkStatus();
  }
  if (order_.first().has_tokens()) return context_.parameters->PullSteps({}).status();
  const std::shared_ptr<ClockGate> gate = order_.gate();
  if (gate != nullptr && !gate->WillDo(dense_lowest_, item.assignment.clock)) {
    // What broadcasts have brought may lack more than is allowed.
    const Clock lowest = gate->lowest();
    LODESTONE_RETURN_IF_ERROR(context_.parameters->PullAll());
    dense_lowest_ = lowest;
  }
  if (!lead_.lead().waits) return context_.parameters->Refresh(acknowledged);
  return context_.parameters->RefreshTo(acknowledged, so_far_.tally->Applied());
}

absl::Status Trainer::ApplyLead(BatchPipeline* pipeline) {
  const Lead& lead = lead_.lead();
  LODESTONE_RETURN_IF_ERROR(context_.parameters->SetSubscribed(!order_.HasSteps() && !lead.waits));
  pipeline->SetAhead(BatchesAhead());
  context_.client->SetPushesInFlightMax(lead.pushes_in_flight);
  context_.parameters->SetOwnPushesMissingMax(kOwnPushesMissingWindows * lead.pushes_in_flight);
  // Nothing is computed here, so that the values may change.
  return lead.waits ? PushAlone(pipeline) : absl::OkStatus();
}

StepOrigin Trainer::OriginOf(const Computed& computed) const {
  const BatchPipeline::Assignment& of = computed.item->assignment;
  if (of.contribution.has_value()) return {computed.step, *of.contribution};
  StepOrigin origin(computed.step, of.range, of.sequence);
  if (!order_.first().has_tokens()) return origin;
  // The token is of the oldest of what it was computed from.
  v1::Contribution& contribution = origin.contribution.emplace();
  contribution.set_step(computed.steps);
  contribution.set_samples(computed.item->keyed.batch.size);
  return origin;
}

absl::Status Trainer::PushAlone(BatchPipeline* pipeline) {
  LODESTONE_ASSIGN_OR_RETURN(const int64_t ns, Push(pipeline));
  so_far_.stages[static_cast<size_t>(Stage::kPush)] += 1e-9 * static_cast<double>(ns);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Trainer::Push(BatchPipeline* pipeline) {
  if (computed_.item == nullptr) return 0;
  const int64_t start_ns = NowNs();
  const KeyedBatch& keyed = computed_.item->keyed;
  const FieldGroups& groups = context_.model->plan().groups;
  const size_t dense_count = context_.model->dense_table_count();
  std::vector<DenseGradient> dense;
  std::vector<RowGradients> rows;
  const std::shared_ptr<const StepOutputs> outputs = computed_.outputs;
  std::shared_ptr<const StepOutputs> borrowed;  // Until the push is done.
  for (size_t t = 0; t < context_.tables->size(); ++t) {
    const TableHandle* const table = &(*context_.tables)[t];
    const float* const gradient = outputs->GradientIn(outputs->data(), t);
    if (t < dense_count) {
      dense.push_back({table, gradient, outputs->gradient_floats(t) >= kBorrowedFloatsMin});
      if (dense.back().borrowed) borrowed = outputs;
    } else if (keyed.has_keys() || order_.HasSteps()) {
      rows.push_back({table, keyed.KeysOf(groups.OfTable(t - dense_count)), gradient});
    }
  }
  const BatchPipeline::Assignment& of = computed_.item->assignment;
  auto pushed = [tally = so_far_.tally, ranges = context_.ranges, gate = order_.gate(), range = of.range.incarnation,
                 sequence = of.sequence, clock = of.clock, sync = order_.first().has_sync(),
                 borrowed](const Client::PushResult& result) {
    tally->Add(result);
    // What a guard refuses is not sent again.
    if (!result.status.ok() && (sync || !absl::IsOutOfRange(result.status))) return;
    if (ranges != nullptr) ranges->Acknowledged(range, sequence);
    if (gate != nullptr) gate->Acknowledged(clock);
  };
  if (lead_.lead().waits) {
    LODESTONE_RETURN_IF_ERROR(PushAndRead(pipeline, dense, rows, std::move(pushed)));
  } else {
    LODESTONE_RETURN_IF_ERROR(
        context_.client->Push(OriginOf(computed_), dense, rows, computed_.read_versions, std::move(pushed)));
  }
  computed_ = {};
  pipeline->Release();
  return NowNs() - start_ns;
}

absl::Status Trainer::PushAndRead(BatchPipeline* pipeline, std::span<const DenseGradient> dense,
                                  std::span<const RowGradients> rows,
                                  const std::function<void(const PushResult&)>& pushed) {
  LODESTONE_RETURN_IF_ERROR(context_.client->Flush());  // Of pushes from before it waited.
  std::optional<BatchPipeline::RowsRead> next = pipeline->TakeNextRead();
  const Awaited<std::pair<absl::Status, ShardVersions>> answer;
  absl::Status status = context_.client->PushPull(OriginOf(computed_), dense, rows, computed_.read_versions,
                                                  context_.parameters->BeginRead(),
                                                  next.has_value() ? next->pulls : std::vector<RowPull>(),
                                                  [answer, &pushed](const PushResult& result, ShardVersions versions) {
                                                    pushed(result);
                                                    answer.Set({result.status, std::move(versions)});
                                                  });
  ShardVersions versions;
  if (status.ok()) std::tie(status, versions) = answer.Await();
  if (status.ok()) context_.parameters->EndRead(versions);
  if (next.has_value() && absl::IsOutOfRange(status)) {  // A guard has refused the push: nothing was read.
    context_.client->Pull({}, std::move(next->pulls), std::move(next->done));
  } else if (next.has_value()) {
    next->done(status, std::move(versions));
  }
  return absl::IsOutOfRange(status) ? absl::OkStatus() : status;
}

}  // namespace lodestone::worker
