#include "worker/training/job.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "worker/model/model.h"
#include "worker/model/step_order.h"
#include "worker/report/progress.h"
#include "worker/training/agreed_tables.h"
#include "worker/training/compute.h"
#include "worker/training/evaluator.h"
#include "worker/training/parameters.h"
#include "worker/training/range_feed.h"
#include "worker/training/trainer.h"
#include "worker/training/training_context.h"
#include "worker/training/validator.h"

namespace lodestone::worker {
namespace {

// Evaluations of a model that others go on changing.
constexpr int kEvaluationsMax = 3;

void LogMetrics(const char* set, const EvaluationMetrics::Result& result) {
  const std::string metrics = absl::StrJoin(MetricsOf(result), " ", [](std::string* out, const NamedMetric& metric) {
    absl::StrAppend(out, absl::StrFormat("%s=%.6f", metric.name, metric.value));
  });
  LODESTONE_LOG(INFO, "evaluator", "evaluated set={} samples={} metrics={}", set, result.samples, metrics);
}

// Training and test metrics of the values as they are.
absl::Status EvaluateAll(const TrainingContext& context, Summary* summary) {
  const LoadedData& data = *context.data;
  Progress* const progress = context.progress;
  const Dataset& all_train = data.train_sample != nullptr ? *data.train_sample : *data.train;
  const uint64_t train = std::min<uint64_t>(all_train.size(), context.config->train().evaluate_train_samples_max());
  const uint64_t test = data.test == nullptr ? 0 : data.test->size();
  Evaluator evaluator(context);
  if (test > 0) {
    LODESTONE_ASSIGN_OR_RETURN(summary->test, evaluator.Evaluate(*data.test, test, [=](uint64_t done) {
      progress->Evaluated(done, train + test);
    }));
    LogMetrics("test", *summary->test);
  }
  if (train > 0) {
    LODESTONE_ASSIGN_OR_RETURN(summary->train, evaluator.Evaluate(all_train, train, [=](uint64_t done) {
      progress->Evaluated(test + done, train + test);
    }));
    LogMetrics("train", *summary->train);
  }
  summary->best_reachable = data.best_reachable;
  summary->best_reachable_metric = data.best_reachable_metric;
  return absl::OkStatus();
}

// What validations have found, of all workers. A coordinator that does not answer costs the summary that.
void FillValidations(const TrainingContext& context, bool stopped_early, Summary* summary) {
  if (context.validator == nullptr && !stopped_early) return;
  const absl::StatusOr<v1::ValidateResponse> response = context.client->Validate({});
  if (response.ok()) summary->validations = response->state();
  if (response.ok() && !summary->interrupted && summary->validations.results().empty()) {
    LODESTONE_LOG(WARN, "trainer",
                  "no validation was done: training ended before the first was due; let train.validate come "
                  "more often, or train for longer");
  }
  if (!stopped_early) return;
  summary->stopped_early =
      summary->validations.stopped().empty() ? "the coordinator has ended training" : summary->validations.stopped();
}

// Pulls the dense values, and asks every shard that holds something of the tables for so many steps: those that they
// have are the lowest of all then (Parameters::steps).
absl::Status PullFromEveryShard(const TrainingContext& context, uint64_t steps_min) {
  std::vector<RowPull> rows;
  for (size_t t = context.model->dense_table_count(); t < context.tables->size(); ++t) {
    rows.push_back({&(*context.tables)[t], {}, nullptr});
  }
  return context.parameters->PullSteps({.steps_min = steps_min, .every_shard = true}, std::move(rows)).status();
}

// The evaluation at the end of a run, after `await`, which waits until no worker takes steps. If another has pushed
// meanwhile (one that was started again, say), what was evaluated was no one version of the model: it waits and
// evaluates again.
absl::Status EvaluateTheEnd(const TrainingContext& context, absl::FunctionRef<absl::Status()> await, Summary* summary) {
  for (int attempt = 1; attempt <= kEvaluationsMax; ++attempt) {
    context.progress->Enter(v1::PHASE_WAITING);
    LODESTONE_RETURN_IF_ERROR(await());
    context.progress->Enter(v1::PHASE_EVALUATING);
    LODESTONE_RETURN_IF_ERROR(context.parameters->PullAll());
    const ShardVersions before = context.parameters->versions();
    LODESTONE_RETURN_IF_ERROR(EvaluateAll(context, summary));
    LODESTONE_RETURN_IF_ERROR(context.parameters->PullAll());
    summary->changed = context.parameters->versions() != before;
    if (!summary->changed) return absl::OkStatus();
    LODESTONE_LOG(WARN, "evaluator", "others pushed during the evaluation; attempt={} of={}", attempt, kEvaluationsMax);
  }
  return absl::OkStatus();
}

// The end of a run whose samples are leased: the worker that the coordinator chooses evaluates, the others wait for
// that. `order`: of the steps by then.
absl::Status EndRanges(const TrainingContext& context, const v1::Consistency& order, Summary* summary) {
  RangeFeed* const ranges = context.ranges.get();
  const auto quits = [&context] { return context.Stops(StopRequest::kQuit); };
  context.progress->Enter(v1::PHASE_WAITING);
  LODESTONE_ASSIGN_OR_RETURN(const RangeFeed::Ending ending, ranges->Finish(quits));
  if (ending == RangeFeed::Ending::kStopped) {
    return absl::CancelledError("stopped while it waited for another worker's evaluation");
  }
  if (ending == RangeFeed::Ending::kEvaluate) {
    // The last step is applied when it is asked for.
    if (order.has_sync()) {
      LODESTONE_RETURN_IF_ERROR(PullFromEveryShard(context, ranges->steps_done()));
      ranges->NoteSteps(context.parameters->steps());  // A coordinator that was started again knows no better.
    }
    LODESTONE_RETURN_IF_ERROR(EvaluateTheEnd(
        context, [] { return absl::OkStatus(); }, summary));
    LODESTONE_RETURN_IF_ERROR(ranges->Evaluated());
  }
  if (!ranges->complete() && !context.client->StopsEarly()) {
    summary->untrained.push_back("the run was broken off before all of its ranges were trained");
  }
  return absl::OkStatus();
}

// The order of steps that the tables' consistency comes to.
v1::Consistency OrderOf(const std::vector<TableHandle>& tables) { return StepOrderOf(SpecsOf(tables)); }

// What the samples are leased by from now on. `orders`: the changes of the order of steps that this worker has
// followed.
absl::StatusOr<std::shared_ptr<RangeFeed>> LeaseBy(const v1::Consistency& order, uint64_t orders,
                                                   const TrainingContext& context, EpochBatches* batches) {
  std::optional<v1::Consistency::Sync> sync;
  if (order.has_sync()) {
    sync = order.sync();
    if (context.config->train().sharing() != v1::TrainConfig::RANGES) {
      return absl::InvalidArgumentError(
          "consistency sync needs train.sharing: ranges, which hands out a step's batches");
    }
    LODESTONE_RETURN_IF_ERROR(PullFromEveryShard(context, /*steps_min=*/0));
  }
  // With train.epochs: 0 there is nothing to lease.
  if (context.config->train().sharing() != v1::TrainConfig::RANGES || batches->batches() == 0) return nullptr;
  RangeFeed::Options options{.plan = PlanOf(*context.config, context.data->train->size(), batches, sync),
                             .retry_timeout_ms = context.config->worker().retry_timeout_ms(),
                             .time = context.time,
                             .steps = context.parameters->steps(),
                             .orders = orders,
                             .stops = [stop = context.stop, client = context.client] {
                               return stop->load() >= StopRequest::kFinish || client->StopsEarly();
                             }};
  return std::make_shared<RangeFeed>(context.client, batches, std::move(options));
}

// Has the worker wait between two steps until the order of steps is another one, which the handles of `tables` have
// then; returns the changes of the order that it has followed. Nullopt: it was asked to stop, or nothing is left to
// train.
absl::StatusOr<std::optional<uint64_t>> PauseForOrder(const TrainingContext& context,
                                                      std::vector<TableHandle>* tables) {
  context.progress->Enter(v1::PHASE_WAITING);
  if (OrderOf(*tables).has_sync()) {
    LODESTONE_RETURN_IF_ERROR(PullFromEveryShard(context, /*steps_min=*/0));
    context.ranges->NoteSteps(context.parameters->steps());
  }
  const auto stops = [&context] { return context.Stops(StopRequest::kFinish) || context.client->StopsEarly(); };
  LODESTONE_ASSIGN_OR_RETURN(const std::optional<uint64_t> orders, context.ranges->AwaitEndOfPause(stops));
  if (!orders.has_value()) return orders;
  LODESTONE_RETURN_IF_ERROR(context.parameters->SetSubscribed(false));
  LODESTONE_RETURN_IF_ERROR(context.client->FollowOrders(*orders));
  LODESTONE_ASSIGN_OR_RETURN(
      std::optional<std::vector<TableHandle>> handles,
      EnsureAgreedTables(context.client, context.model->tables(),
                         {.timeout_ms = context.config->worker().retry_timeout_ms(),
                          .time = context.time,
                          .stops = stops,
                          .on_wait = [&](const std::string& what) { context.progress->WaitsFor(what); }}));
  if (!handles.has_value()) return std::optional<uint64_t>();
  std::move(handles->begin(), handles->end(), tables->begin());  // Others know them by address.
  const std::string words = InWords(OrderOf(*tables));
  LODESTONE_LOG(INFO, "trainer", "goes on after a pause order=`{}`", words.empty() ? "async" : words);
  return orders;
}

absl::Status EndPartitions(const TrainingContext& context, Summary* summary) {
  if (context.client->index() > 0) return absl::OkStatus();
  const auto quits = [&context] { return context.Stops(StopRequest::kQuit); };
  const auto await = [&]() -> absl::Status {
    LODESTONE_ASSIGN_OR_RETURN(summary->untrained,
                               context.client->AwaitClock(std::numeric_limits<Clock>::max(), quits));
    return absl::OkStatus();
  };
  return EvaluateTheEnd(context, await, summary);
}

}  // namespace

absl::StatusOr<Summary> RunJob(const v1::Config& config, Client* client, const LoadedData& data, const TimeSource* time,
                               const std::atomic<StopRequest>* stop, Results* results, kernels::Backend* backend) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, Model::Create(config, data.schema, backend));
  Progress progress(client, time, model->metrics_kind(), backend->name(),
                    model->plan().multitask.has_value() ? model->plan().multitask->labels[0] : "");
  LODESTONE_ASSIGN_OR_RETURN(
      std::optional<std::vector<TableHandle>> agreed,
      EnsureAgreedTables(client, model->tables(),
                         {.timeout_ms = config.worker().retry_timeout_ms(),
                          .time = time,
                          .stops = [stop] { return stop->load() >= StopRequest::kQuit; },
                          .on_wait = [&](const std::string& what) { progress.WaitsFor(what); }}));
  if (!agreed.has_value()) return absl::CancelledError("stopped before the first step");
  std::vector<TableHandle> tables = *std::move(agreed);
  std::vector<const TableHandle*> dense;
  for (size_t t = 0; t < model->dense_table_count(); ++t) dense.push_back(&tables[t]);
  Parameters parameters(client, dense,
                        {.refresh_ms_max = config.worker().refresh_max_ms(), .time = time, .backend = backend});
  LODESTONE_RETURN_IF_ERROR(parameters.Start());

  Compute compute(model.get(), &tables);
  TrainingContext context{.config = &config,
                          .client = client,
                          .data = &data,
                          .model = model.get(),
                          .compute = &compute,
                          .tables = &tables,
                          .parameters = &parameters,
                          .progress = &progress,
                          .results = results,
                          .time = time,
                          .stop = stop};
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Validator> validator, Validator::Create(context));
  context.validator = validator.get();
  EpochBatches batches = Trainer::BatchesOf(config, data.train->size(), /*worker=*/0);
  batches.ReadAheadIn(data.train.get());
  v1::Consistency order = OrderOf(tables);
  LODESTONE_ASSIGN_OR_RETURN(context.ranges, LeaseBy(order, /*orders=*/0, context, &batches));
  auto trainer = std::make_unique<Trainer>(context);
  LODESTONE_ASSIGN_OR_RETURN(Trainer::Result trained, trainer->Train());
  while (trained.paused) {
    LODESTONE_ASSIGN_OR_RETURN(const std::optional<uint64_t> orders, PauseForOrder(context, &tables));
    if (!orders.has_value()) {
      trained.stopped_early = !context.ranges->complete() && client->StopsEarly();
      trained.stopped = !context.ranges->complete() && !trained.stopped_early;
      break;
    }
    order = OrderOf(tables);
    LODESTONE_ASSIGN_OR_RETURN(context.ranges, LeaseBy(order, *orders, context, &batches));
    trainer = std::make_unique<Trainer>(context, trainer->so_far());
    LODESTONE_ASSIGN_OR_RETURN(trained, trainer->Train());
  }
  Summary summary;
  summary.model = absl::AsciiStrToLower(v1::ModelConfig::Type_Name(model->plan().type));
  summary.worker = client->index();
  summary.device = backend->name();
  summary.samples = trained.samples;
  summary.samples_total = trained.samples_total;
  summary.interrupted = trained.stopped;
  summary.delays = trained.delays;
  summary.loss_complaint = trained.loss_complaint;
  summary.seconds = trained.seconds;
  summary.staleness_pushes = trained.staleness_pushes;
  summary.stage_seconds = trained.stages;
  summary.consistency = trained.consistency;
  if (context.Stops(StopRequest::kQuit)) {
    if (context.ranges != nullptr) (void)context.ranges->Finish([] { return true; });  // Gives them back at once.
    return absl::CancelledError(absl::StrCat("stopped after ", trained.steps, " steps"));
  }
  LODESTONE_RETURN_IF_ERROR(context.ranges != nullptr ? EndRanges(context, order, &summary)
                                                      : EndPartitions(context, &summary));
  FillValidations(context, trained.stopped_early, &summary);
  if (!summary.complete()) {
    LODESTONE_LOG(WARN, "trainer", "not all samples were trained: {}", WhatIsMissing(summary));
  }
  progress.Enter(v1::PHASE_FINISHED);
  return summary;
}

}  // namespace lodestone::worker
