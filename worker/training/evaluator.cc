#include "worker/training/evaluator.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "worker/client/client.h"
#include "worker/data/sample_stream.h"
#include "worker/model/model.h"
#include "worker/training/batch_pipeline.h"
#include "worker/training/compute.h"
#include "worker/training/parameters.h"

namespace lodestone::worker {
namespace {

// Samples per pull: large, because the parameters do not change in between.
constexpr uint64_t kBatchSizeMax = 2048;
constexpr uint64_t kWidthSamplesMax = 16;  // Read for the mean number of keys.
constexpr uint64_t kReadAheadSpread = 4;

uint64_t CeilingOf(uint64_t dividend, uint64_t divisor) { return (dividend + divisor - 1) / divisor; }

// The keys of a sample; where they may be any number, the mean of some samples, evenly spread.
uint64_t KeysPerSample(const Schema& schema, const Dataset& data) {
  if (!schema.sparse && schema.pooling.empty()) return schema.field_count;
  const uint64_t samples = std::min(data.size(), kWidthSamplesMax);
  uint64_t keys = 0;
  Batch batch;
  for (uint64_t i = 0; i < samples; ++i) {
    data.Read(std::vector<uint64_t>{i * data.size() / samples}, &batch);
    keys += batch.keys.size();
  }
  return samples == 0 ? 0 : CeilingOf(keys, samples);
}

}  // namespace

uint64_t EvaluationBatchSize(const Schema& schema, const Dataset& data) {
  const uint64_t keys = std::max<uint64_t>(1, KeysPerSample(schema, data));
  const uint64_t numbers = std::max<uint64_t>(1, schema.numeric_count);
  return std::min({kBatchSizeMax, CeilingOf(SampleStream::kKeysEnough, keys),
                   CeilingOf(SampleStream::kNumbersEnough, numbers)});  // As in predictions.
}

void WarnOfMissingLabels(const EvaluationMetrics::Result& result) {
  for (const std::string& label : result.missing_labels) {
    LODESTONE_LOG(WARN, "evaluator",
                  "no evaluated sample has the label, or none that weighs anything label={} samples={}", label,
                  result.samples);
  }
}

absl::StatusOr<EvaluationMetrics::Result> Evaluator::Evaluate(
    const Dataset& data, uint64_t samples, const std::function<void(uint64_t samples)>& on_progress) {
  const uint64_t size = data.size();
  LODESTONE_CHECK(samples <= size);
  std::vector<const TableHandle*> row_tables;
  for (size_t t = context_.model->dense_table_count(); t < context_.tables->size(); ++t) {
    row_tables.push_back(&(*context_.tables)[t]);
  }
  const uint64_t batch_size = EvaluationBatchSize(context_.data->schema, data);
  uint64_t at = 0;
  BatchPipeline pipeline(
      context_.client, &data, row_tables,
      [&](BatchPipeline::Assignment* batch) {
        for (; at < samples && batch->indices.size() < batch_size; ++at) {
          batch->indices.push_back(static_cast<uint64_t>(static_cast<unsigned __int128>(at) * size / samples));
        }
        if (batch->indices.empty()) return false;
        const uint64_t first = batch->indices.front(), count = batch->indices.back() - first + 1;
        // Of samples that lie far from one another the most would be read for nothing.
        if (count <= kReadAheadSpread * batch->indices.size()) data.WillRead(first, count);
        return true;
      },
      {.ahead = std::max<uint32_t>(1, context_.config->worker().prefetch_batches()),
       .backend = context_.model->backend(),
       .groups = context_.model->plan().groups});
  EvaluationMetrics metrics = context_.model->NewMetrics();
  std::vector<float> predictions;
  uint64_t done = 0;
  while (true) {
    if (context_.Stops(StopRequest::kQuit)) return absl::CancelledError("stopped during the evaluation");
    LODESTONE_RETURN_IF_ERROR(context_.client->Health());
    LODESTONE_ASSIGN_OR_RETURN(const BatchPipeline::Item* item, pipeline.Next());
    if (item == nullptr) {
      EvaluationMetrics::Result result = metrics.Finish();
      WarnOfMissingLabels(result);
      return result;
    }
    const Batch& batch = item->keyed.batch;
    predictions.resize(batch.size);
    LODESTONE_ASSIGN_OR_RETURN(const double loss,
                               context_.compute->Predict(*item, *context_.parameters, predictions.data()));
    metrics.Add(batch.size, predictions.data(), batch.labels.data(), loss, context_.compute->DetailsOf(batch));
    done += batch.size;
    pipeline.Release();
    on_progress(done);
  }
}

}  // namespace lodestone::worker
