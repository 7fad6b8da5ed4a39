// The loss of several labels: the sum of their logistic losses, each weighted by its label's weight and, sample by
// sample, by what the label counts there, 0 where it is missing.
//
// Not thread-safe: it keeps scratch memory, in the backend's memory. The backend must outlive it.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/scratch_array.h"
#include "worker/model/keyed_batch.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {

class LabelLosses {
 public:
  // REQUIRES: plan.multitask.
  LabelLosses(const ModelPlan& plan, kernels::Backend* backend);

  // Of logits, [samples, labels]: writes, each unless it is null, the gradient of the losses' mean over the samples,
  // [samples, labels], and the first label's predictions, [samples]; and the sum of the samples' losses, which is 0 of
  // a batch without labels.
  void Compute(const BatchView& batch, const float* logits, float* dlogits, float* predictions, double* loss);

 private:
  const std::vector<float> label_weights_;
  kernels::Backend* const backend_;
  // [labels, samples]
  kernels::ScratchArray<float> logits_;
  kernels::ScratchArray<float> weights_;
  kernels::ScratchArray<float> dlogits_;
  kernels::ScratchArray<float> scaled_;
  kernels::ScratchArray<float> predictions_;
};

}  // namespace lodestone::worker
