#include "worker/training/validator.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "worker/client/client.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"
#include "worker/report/results.h"
#include "worker/training/batch_pipeline.h"
#include "worker/training/compute.h"
#include "worker/training/evaluator.h"
#include "worker/training/parameters.h"

namespace lodestone::worker {
namespace {

constexpr size_t kTopClasses = 5;  // Of top5_accuracy.

std::vector<const TableHandle*> TablesOf(const TrainingContext& context, size_t begin, size_t end) {
  std::vector<const TableHandle*> tables;
  for (size_t t = begin; t < end; ++t) tables.push_back(&(*context.tables)[t]);
  return tables;
}

// INVALID_ARGUMENT, naming those there are, if no validation of the model has such a metric, or these samples have
// none; empty: it chooses.
absl::Status CheckMetric(const std::string& name, const Model& model, const Dataset& samples) {
  const auto& multitask = model.plan().multitask;
  const std::vector<std::string> names =
      JudgingMetrics(model.metrics_kind(), multitask.has_value() ? multitask->labels : std::vector<std::string>());
  if (name.empty()) return absl::OkStatus();
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return absl::InvalidArgumentError(absl::StrCat("train.validate.metric: the model has no metric \"", name,
                                                   "\" to be judged by; take one of ", absl::StrJoin(names, ", ")));
  }
  if (name == "top5_accuracy" && model.plan().outputs <= kTopClasses) {
    return absl::InvalidArgumentError(absl::StrCat("train.validate.metric: top5_accuracy says nothing of ",
                                                   model.plan().outputs, " classes; take accuracy or loss"));
  }
  if (name != "gauc" && !absl::EndsWith(name, "/gauc")) return absl::OkStatus();
  Batch first;
  samples.Read(std::vector<uint64_t>{0}, &first);
  if (!first.groups.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("train.validate.metric: ", name,
                   " needs groups of samples: name their column in data.csv.group, or take another metric"));
}

// The metric of a validation that it is judged by.
absl::StatusOr<NamedMetric> Judge(const std::string& name, EvaluationMetrics::Kind kind,
                                  const EvaluationMetrics::Result& result) {
  if (name.empty()) {
    const NamedMetric judged_by = JudgedBy(kind, result);
    return judged_by.name.empty() ? NamedMetric{"loss", result.loss} : judged_by;
  }
  for (const NamedMetric& metric : MetricsOf(result)) {
    if (metric.name == name) return metric;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "train.validate.metric: the validated samples have no ", name,
      ": it needs other ones than they are (an auc both classes, a gauc csv.group); take another metric, or "
      "more samples (train.validate.samples_max)"));
}

void Set(const NamedMetric& metric, v1::ValidationMetric* to) {
  to->set_name(metric.name);
  to->set_value(metric.value);
}

}  // namespace

struct Validator::Frozen {
  Frozen(const TrainingContext& context, std::vector<const TableHandle*> dense);
  Parameters parameters;
  Compute compute;
  std::vector<uint64_t> samples;  // Of data.test.
  size_t batch_size = 0;          // So many of them at a time.
  // The keys of all of them, each once; by group.
  struct Keys {
    std::vector<Key> keys;
    absl::flat_hash_map<Key, uint32_t> indices;  // In `keys`.
  };
  const FieldGroups* fields;
  std::vector<Keys> groups;
  KeyIndexer indexer;
  const Keys& KeysOf(size_t row_table) const { return groups[fields->OfTable(row_table)]; }
  std::vector<std::vector<float>> rows;  // Per row table: [keys of its group, dim].
  BatchPipeline::Item item;
};

Validator::Frozen::Frozen(const TrainingContext& context, std::vector<const TableHandle*> dense)
    : parameters(context.client, std::move(dense), {.time = context.time, .backend = context.model->backend()}),
      compute(context.model, context.tables),
      fields(&context.model->plan().groups),
      groups(fields->count()),
      indexer(*fields) {}

absl::StatusOr<std::unique_ptr<Validator>> Validator::Create(const TrainingContext& context) {
  if (!context.config->train().has_validate()) return nullptr;
  if (context.data->test == nullptr || context.data->test->size() == 0) {
    return absl::InvalidArgumentError(
        "train.validate needs held-out samples: name files in data.test, or set data.test_share");
  }
  LODESTONE_RETURN_IF_ERROR(
      CheckMetric(context.config->train().validate().metric(), *context.model, *context.data->test));
  return std::unique_ptr<Validator>(new Validator(context));
}

Validator::Validator(const TrainingContext& context)
    : context_(context),
      config_(context.config->train().validate()),
      schedule_(config_, context.data->train->size()),
      row_tables_(TablesOf(context, context.model->dense_table_count(), context.tables->size())) {}

Validator::~Validator() = default;

bool Validator::IsDue(uint64_t steps, uint64_t samples, uint64_t position) {
  const uint64_t passed = schedule_.Passed(steps, Seconds(), position);
  if (passed <= passed_) return false;
  passed_ = passed;
  v1::ValidateRequest request;
  request.set_claim(passed);
  const absl::StatusOr<v1::ValidateResponse> response = context_.client->Validate(request);
  if (!response.ok()) {
    LODESTONE_LOG(WARN, "validator", "validation left out number={} reason={}", passed,
                  std::string(response.status().message()));
    return false;
  }
  passed_ = std::max(passed_, response->state().claimed());
  cluster_samples_ = std::max(response->cluster_samples(), samples);  // It has not heard of the newest.
  return response->claimed();
}

absl::Status Validator::Validate(uint64_t steps) {
  const uint64_t number = passed_;
  const double begin = Seconds();
  const bool is_first = frozen_ == nullptr;
  if (is_first) LODESTONE_RETURN_IF_ERROR(Prepare());
  LODESTONE_ASSIGN_OR_RETURN(const ShardVersions versions, Read());
  LODESTONE_ASSIGN_OR_RETURN(const EvaluationMetrics::Result result, ComputeMetrics());
  if (is_first) WarnOfMissingLabels(result);  // The samples are the same each time.
  v1::Validation validation;
  validation.set_number(number);
  validation.set_worker(context_.client->index());
  validation.set_clock(steps);
  validation.set_samples(cluster_samples_);
  validation.set_seconds(begin);
  validation.set_duration_seconds(Seconds() - begin);
  validation.set_validated(result.samples);
  LODESTONE_ASSIGN_OR_RETURN(const NamedMetric judged_by,
                             Judge(config_.metric(), context_.model->metrics_kind(), result));
  Set(judged_by, validation.mutable_judged_by());
  validation.set_lower_is_better(LowerIsBetter(judged_by));
  for (const NamedMetric& metric : MetricsOf(result)) Set(metric, validation.add_metrics());
  validation.mutable_versions()->Add(versions.begin(), versions.end());
  Report(validation, result);
  return absl::OkStatus();
}

void Validator::Report(const v1::Validation& validation, const EvaluationMetrics::Result& result) {
  v1::ValidateRequest request;
  request.set_patience(config_.patience());
  *request.mutable_result() = validation;
  const absl::StatusOr<v1::ValidateResponse> response = context_.client->Validate(request);
  const std::string metrics = absl::StrJoin(MetricsOf(result), " ", [](std::string* out, const NamedMetric& metric) {
    absl::StrAppend(out, metric.name, "=", metric.value);
  });
  LODESTONE_LOG(INFO, "validator", "validated number={} clock={} samples={} seconds={:.2f} metrics={} best={}",
                validation.number(), validation.clock(), validation.validated(), validation.duration_seconds(), metrics,
                response.ok() && response->best());
  if (context_.results != nullptr) {
    context_.results->Validated(validation, result, response.ok() && response->best());
  }
  if (!response.ok()) {
    LODESTONE_LOG(WARN, "validator", "the coordinator was not told of validation number={} reason={}",
                  validation.number(), std::string(response.status().message()));
    return;
  }
  if (response->best() && config_.keep_best()) Keep(validation.number(), response->state());
}

void Validator::Keep(uint64_t number, const v1::ValidationState& state) {
  const std::string name = absl::StrCat("best-", number, "-", context_.client->incarnation());
  const absl::Status kept = context_.client->WriteCheckpoint(name, state.kept_before());
  if (!kept.ok()) {
    LODESTONE_LOG(WARN, "validator", "the best model is not kept number={} reason={}", number,
                  std::string(kept.message()));
    return;
  }
  v1::ValidateRequest request;
  request.mutable_kept()->set_number(number);
  request.mutable_kept()->set_checkpoint(name);
  const absl::StatusOr<v1::ValidateResponse> response = context_.client->Validate(request);
  LODESTONE_LOG(
      INFO, "validator", "the best model so far is kept checkpoint={}{}", name,
      response.ok() ? "" : absl::StrCat(", which the coordinator was not told: ", response.status().message()));
}

absl::Status Validator::Prepare() {
  frozen_ = std::make_unique<Frozen>(context_, TablesOf(context_, 0, context_.model->dense_table_count()));
  const Dataset& data = *context_.data->test;
  const uint64_t stride = EvenStride(data.size(), config_.samples_max());
  for (uint64_t i = 0; i < data.size(); i += stride) frozen_->samples.push_back(i);
  frozen_->batch_size = EvaluationBatchSize(context_.data->schema, data);
  KeyedBatch keyed;
  for (size_t at = 0; at < frozen_->samples.size() && !row_tables_.empty(); at += frozen_->batch_size) {
    const size_t count = std::min(frozen_->batch_size, frozen_->samples.size() - at);
    LODESTONE_RETURN_IF_ERROR(frozen_->indexer.Read(data, {frozen_->samples.data() + at, count}, &keyed));
    for (size_t g = 0; g < frozen_->groups.size(); ++g) {
      auto& [keys, indices] = frozen_->groups[g];
      for (const Key key : keyed.KeysOf(g)) {
        if (indices.emplace(key, static_cast<uint32_t>(keys.size())).second) keys.push_back(key);
      }
    }
  }
  kernels::Backend* const backend = context_.model->backend();
  for (size_t t = 0; t < row_tables_.size(); ++t) {
    frozen_->rows.emplace_back(frozen_->KeysOf(t).keys.size() * row_tables_[t]->dim);
    frozen_->item.rows.emplace_back(backend, kernels::Memory::kHost);
  }
  if (!backend->on_host()) {
    frozen_->item.device =
        std::make_unique<DeviceBatch>(backend, /*ordered=*/false, frozen_->groups.size(), row_tables_.size());
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardVersions> Validator::Read() {
  std::vector<RowPull> rows;
  for (size_t t = 0; t < row_tables_.size(); ++t) {
    if (const std::vector<Key>& keys = frozen_->KeysOf(t).keys; !keys.empty()) {
      rows.push_back({row_tables_[t], keys, frozen_->rows[t].data()});
    }
  }
  return frozen_->parameters.PullAll(std::move(rows));
}

absl::Status Validator::FillItem(size_t begin, size_t count) {
  BatchPipeline::Item& item = frozen_->item;
  LODESTONE_RETURN_IF_ERROR(
      frozen_->indexer.Read(*context_.data->test, {frozen_->samples.data() + begin, count}, &item.keyed));
  std::vector<size_t> row_floats;
  for (size_t t = 0; t < row_tables_.size(); ++t) {
    const size_t dim = row_tables_[t]->dim;
    const std::vector<Key>& keys = item.keyed.KeysOf(frozen_->fields->OfTable(t));
    row_floats.push_back(keys.size() * dim);
    float* to = item.rows[t].Resize(row_floats[t]);
    if (to == nullptr) continue;  // There are no keys, or the backend has failed and Predict says so.
    for (const Key key : keys) {
      to = std::copy_n(frozen_->rows[t].data() + size_t{frozen_->KeysOf(t).indices.at(key)} * dim, dim, to);
    }
  }
  if (item.device == nullptr) return absl::OkStatus();
  item.device->Pack(item.keyed, row_floats);
  item.device->Upload(item.rows);
  return absl::OkStatus();
}

absl::StatusOr<EvaluationMetrics::Result> Validator::ComputeMetrics() {
  EvaluationMetrics metrics = context_.model->NewMetrics();
  std::vector<float> predictions;
  for (size_t at = 0; at < frozen_->samples.size(); at += frozen_->batch_size) {
    if (context_.Stops(StopRequest::kQuit)) return absl::CancelledError("stopped during a validation");
    LODESTONE_RETURN_IF_ERROR(context_.client->Health());
    const size_t count = std::min(frozen_->batch_size, frozen_->samples.size() - at);
    LODESTONE_RETURN_IF_ERROR(FillItem(at, count));
    const Batch& batch = frozen_->item.keyed.batch;
    predictions.resize(count);
    LODESTONE_ASSIGN_OR_RETURN(const double loss,
                               frozen_->compute.Predict(frozen_->item, frozen_->parameters, predictions.data()));
    metrics.Add(count, predictions.data(), batch.labels.data(), loss, frozen_->compute.DetailsOf(batch));
  }
  return metrics.Finish();
}

}  // namespace lodestone::worker
