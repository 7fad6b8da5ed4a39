#include "worker/training/label_logits.h"

#include "common/telemetry/log.h"

namespace lodestone::worker {

absl::Status LabelLogits::SetIn(const Batch& batch, EvaluationMetrics::Details* details) {
  if (!model_->plan().multitask.has_value()) return absl::OkStatus();
  details->label_weights = batch.label_weights.data();
  details->logits = model_->logits();
  kernels::Backend* const backend = model_->backend();
  if (backend->on_host()) return absl::OkStatus();
  const size_t count = batch.size * model_->OutputsOf(batch.size);
  details->logits = logits_.Resize(count);
  backend->CopyOut(count * sizeof(float), model_->logits(), logits_.data());
  return backend->Finish();
}

void WarnOfMissingLabels(const EvaluationMetrics::Result& result) {
  for (const std::string& label : result.missing_labels) {
    LODESTONE_LOG(WARN, "evaluator",
                  "no evaluated sample has the label, or none that weighs anything label={} samples={}", label,
                  result.samples);
  }
}

}  // namespace lodestone::worker
