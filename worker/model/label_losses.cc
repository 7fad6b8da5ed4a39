#include "worker/model/label_losses.h"

#include "common/base/check.h"

namespace lodestone::worker {

LabelLosses::LabelLosses(const ModelPlan& plan, kernels::Backend* backend)
    : label_weights_(plan.multitask->loss_weights),
      backend_(backend),
      logits_(backend),
      weights_(backend),
      dlogits_(backend),
      scaled_(backend),
      predictions_(backend) {}

void LabelLosses::Compute(const BatchView& batch, const float* logits, float* dlogits, float* predictions,
                          double* loss) {
  const size_t samples = batch.size, labels = label_weights_.size(), n = samples * labels;
  const bool has_labels = batch.label_weights != nullptr;
  LODESTONE_CHECK(has_labels || dlogits == nullptr);
  logits_.Resize(n);
  backend_->Fill(n, 0.0f, weights_.Resize(n));
  for (size_t k = 0; k < labels; ++k) {
    backend_->ExtractColumns(samples, 1, logits, labels, k, logits_.data() + k * samples);
    if (has_labels) {
      backend_->Axpy(samples, label_weights_[k], batch.label_weights + k * samples, weights_.data() + k * samples);
    }
  }
  float* const gradients = dlogits == nullptr ? nullptr : dlogits_.Resize(n);
  float* const probabilities = predictions == nullptr ? nullptr : predictions_.Resize(n);
  // As one loss of all labels of all samples; labels that count nothing may be any.
  backend_->LogisticLoss(n, logits_.data(), has_labels ? batch.labels : weights_.data(), weights_.data(), gradients,
                         probabilities, loss);
  if (predictions != nullptr) backend_->Copy(samples, probabilities, predictions);
  if (dlogits == nullptr) return;
  // Its gradient is of the mean over labels and samples.
  backend_->Fill(n, 0.0f, scaled_.Resize(n));
  backend_->Axpy(n, static_cast<float>(labels), gradients, scaled_.data());
  for (size_t k = 0; k < labels; ++k) {
    backend_->CopyColumns(samples, 1, scaled_.data() + k * samples, labels, k, dlogits);
  }
}

}  // namespace lodestone::worker
