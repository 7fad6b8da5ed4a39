// The arithmetic of steps, wherever the model's backend has it done: on the CPU from the values where they lie; on a
// device from copies there, of which those of batches are made while the batch before is computed (batch_pipeline.h),
// and those of dense values as they change. What a step gives lies in one piece of memory and comes to the host's in
// one copy.
//
// Not thread-safe. Model and backend must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/scratch_array.h"
#include "worker/client/table_handle.h"
#include "worker/data/dataset.h"
#include "worker/metrics/evaluation_metrics.h"
#include "worker/model/model.h"
#include "worker/training/batch_pipeline.h"
#include "worker/training/output_pool.h"
#include "worker/training/parameters.h"
#include "worker/training/step_outputs.h"

namespace lodestone::worker {

class Compute {
 public:
  // `tables` stand beside model->tables() and must outlive it.
  Compute(Model* model, const std::vector<TableHandle>* tables);

  // Begins a step at the dense values as they are and the rows of `item` (Model::Gradients). Both must stay as they are
  // until FinishGradients, which must follow.
  void StartGradients(const BatchPipeline::Item& item, const Parameters& parameters, uint64_t dropout_seed);
  // Waits for it, and returns the sum of the samples' losses. What the backend has failed at is the error, which names
  // the operation and the device.
  absl::StatusOr<double> FinishGradients();
  // Scales the gradients of the last FinishGradients down to this Euclidean norm over all tables, if theirs is greater
  // (Pascanu et al. 2013). Returns theirs. Gradients that are not finite stay as they are, for a ps to refuse them.
  double ClipGradients(double norm_max);
  // Of the last FinishGradients: the gradients of table `t`, in the table's layout or one row per key, and a prediction
  // for each sample. They stay until the next, or as long as outputs() is held.
  const float* gradient(size_t t) const { return finished_->GradientIn(finished_->data(), t); }
  const float* predictions() const { return finished_->PredictionsIn(finished_->data()); }
  std::shared_ptr<const StepOutputs> outputs() const { return finished_; }

  // The sum of the losses, and a prediction for each sample (Model::Predict).
  absl::StatusOr<double> Predict(const BatchPipeline::Item& item, const Parameters& parameters, float* predictions);
  // What metrics need of the last Predict, which was of `batch`, beside its predictions: valid until the next.
  EvaluationMetrics::Details DetailsOf(const Batch& batch) const;

 private:
  // Whether metrics need a sample's logits: to rank them, or as the outputs of several labels.
  bool NeedsLogits() const;
  // Sets the pointers to the batch's parameters, and queues what must be copied for them.
  void Take(const BatchPipeline::Item& item, const Parameters& parameters);
  // Room on the device for so many floats.
  float* DeviceOutputs(size_t floats);
  // Without a sample if the backend has failed (DeviceBatch::view).
  BatchView ViewOf(const BatchPipeline::Item& item) const;

  // Constant after construction.
  Model* const model_;
  kernels::Backend* const backend_;
  const std::vector<TableHandle>* const tables_;
  const size_t dense_count_;

  ParameterPointers parameters_;
  GradientPointers gradients_;
  std::vector<size_t> gradient_floats_;  // Per table.
  OutputPool pool_;
  std::shared_ptr<StepOutputs> started_;   // Null: no step is under way.
  std::shared_ptr<StepOutputs> finished_;  // Of the last step.
  kernels::ScratchArray<double> loss_;     // In the host's memory, of Predict.
  kernels::ScratchArray<float> logits_;    // In the host's memory, of a device's last Predict, if needed.
  // Empty if the backend works on the host's memory.
  kernels::ScratchArray<float> dense_;           // The dense values, laid as Parameters has them.
  kernels::ScratchArray<float> device_outputs_;  // Laid as those on the host.
  size_t zeroed_ = 0;                            // Floats of device_outputs_ that have been written.
  uint64_t copied_stamp_ = 0;                    // Of the dense values (Parameters::stamp).
};

}  // namespace lodestone::worker
