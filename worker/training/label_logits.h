// What the metrics of several labels need beside the first label's predictions: the logits of the last prediction,
// copied to the host's memory where they are on a device.
//
// Not thread-safe. The model must outlive it.
#pragma once

#include "absl/status/status.h"
#include "kernels/scratch_array.h"
#include "worker/data/dataset.h"
#include "worker/metrics/evaluation_metrics.h"
#include "worker/model/model.h"

namespace lodestone::worker {

class LabelLogits {
 public:
  explicit LabelLogits(const Model* model) : model_(model), logits_(model->backend(), kernels::Memory::kHost) {}

  // Sets them in the details of the model's last Predict, which was of `batch`: valid until the next. Does nothing for
  // a model of one label. What the backend has failed at is the error.
  absl::Status SetIn(const Batch& batch, EvaluationMetrics::Details* details);

 private:
  const Model* const model_;
  kernels::ScratchArray<float> logits_;
};

// Warns, naming it, of each label that no evaluated sample has.
void WarnOfMissingLabels(const EvaluationMetrics::Result& result);

}  // namespace lodestone::worker
