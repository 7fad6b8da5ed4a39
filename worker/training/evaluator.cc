#include "worker/training/evaluator.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/training/batch_pipeline.h"

namespace lodestone::worker {
namespace {

// Samples per pull: large, since nothing is learned in between.
constexpr uint64_t kBatchSize = 2048;

}  // namespace

absl::StatusOr<Metrics::Result> Evaluate(const Evaluation& evaluation) {
  const uint64_t size = evaluation.data->size(), samples = evaluation.samples;
  LODESTONE_CHECK(samples <= size);
  const size_t dense = evaluation.model->dense_table_count();
  std::vector<const TableHandle*> row_tables;
  for (size_t t = dense; t < evaluation.tables->size(); ++t) row_tables.push_back(&(*evaluation.tables)[t]);
  uint64_t at = 0;
  BatchPipeline pipeline(
      evaluation.client, evaluation.data, row_tables,
      [&](std::vector<uint64_t>* indices) {
        for (; at < samples && indices->size() < kBatchSize; ++at) {
          indices->push_back(static_cast<uint64_t>(static_cast<unsigned __int128>(at) * size / samples));
        }
        return !indices->empty();
      },
      {.ahead = std::max<uint32_t>(1, evaluation.prefetch_batches), .backend = evaluation.model->backend()});
  Metrics metrics(evaluation.model->metrics_kind());
  std::vector<float> predictions;
  uint64_t done = 0;
  while (true) {
    if (evaluation.stop->load(std::memory_order_relaxed)) return absl::CancelledError("stopped during the evaluation");
    LODESTONE_RETURN_IF_ERROR(evaluation.client->Health());
    LODESTONE_ASSIGN_OR_RETURN(const BatchPipeline::Item* item, pipeline.Next());
    if (item == nullptr) return metrics.Finish();
    const Batch& batch = item->keyed.batch;
    predictions.resize(batch.size);
    LODESTONE_ASSIGN_OR_RETURN(const double loss,
                               evaluation.compute->Predict(*item, *evaluation.parameters, predictions.data()));
    metrics.Add(batch.size, predictions.data(), batch.labels.data(), loss);
    done += batch.size;
    pipeline.Release();
    if (evaluation.progress) evaluation.progress(done);
  }
}

}  // namespace lodestone::worker
