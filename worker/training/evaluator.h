// The exact metrics of a model over samples of a data set: one pass, all predictions compared with one another.
//
// Not thread-safe; each evaluation starts a pipeline of its own. The context's objects must outlive it.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/metrics/evaluation_metrics.h"
#include "worker/training/training_context.h"

namespace lodestone::worker {

class Evaluator {
 public:
  explicit Evaluator(const TrainingContext& context) : context_(context) {}

  // Evaluates the parameters as they are on `samples` of `data`, evenly spread; at most data.size(). Calls
  // `on_progress` with the number done. CANCELLED if context.stop says to quit.
  absl::StatusOr<EvaluationMetrics::Result> Evaluate(const Dataset& data, uint64_t samples,
                                                     const std::function<void(uint64_t samples)>& on_progress);

 private:
  const TrainingContext context_;
};

// How many samples of `data` are evaluated at a time: 2048, and fewer where they are so wide that a batch of them would
// have more than about 2^20 keys or 2^24 numbers. Reads some of them, if they may have any number of keys.
uint64_t EvaluationBatchSize(const Schema& schema, const Dataset& data);

// Warns, naming it, of each label that no evaluated sample has.
void WarnOfMissingLabels(const EvaluationMetrics::Result& result);

}  // namespace lodestone::worker
