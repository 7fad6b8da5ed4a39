// Whether a training has learned anything: its loss over the last quarter of the samples, beside the loss of the best
// constant prediction for the same kind of labels: the entropy of the classes, or half the variance of the numbers
// (the loss is (prediction - label)^2 / 2). A model that has learned less than 2 % of what a constant leaves has been
// held up by something, mostly by a learning rate that is too high or by the delay of its gradients.
//
// Not thread-safe: for the thread that trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/metrics/evaluation_metrics.h"

namespace lodestone::worker {

class LossTrend {
 public:
  // `class_weights`: what the training samples count by class, for binary and multiclass. `samples_total`: that will be
  // trained on. `label_deviation`: what the loss's labels are divided by; 0: nothing.
  LossTrend(EvaluationMetrics::Kind kind, const std::vector<double>& class_weights, uint64_t samples_total,
            double label_deviation = 0);

  // A step: its samples' labels, the weighted sum of their losses before it, and their weights (null: each counts 1).
  // `position`: samples of the whole training, of all workers that share it, up to and with the step's.
  void Step(uint64_t position, size_t n, const float* labels, double loss_sum, const float* weights = nullptr);

  // Mean loss of the last quarter of all samples; nullopt before that, and if it had too few steps to judge by.
  std::optional<double> last_loss() const;
  // Of the best constant prediction.
  double constant_loss() const;
  // One sentence that says that the loss has not fallen, and what to do; empty if it has, or that cannot be judged.
  std::string Complaint() const;

 private:
  const EvaluationMetrics::Kind kind_;
  const uint64_t last_begin_;  // The sample that the last quarter begins with.
  double entropy_ = 0;
  const double label_deviation_;
  // Of the last quarter.
  uint64_t last_steps_ = 0;
  double last_weight_ = 0;
  double last_loss_sum_ = 0;
  // Of its labels (Welford 1962; with weights West 1979).
  double label_mean_ = 0;
  double label_squares_ = 0;
};

}  // namespace lodestone::worker
