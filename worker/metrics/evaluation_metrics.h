// The exact metrics of a model over a data set, independent of batching.
//
// Results are exact, not averages over batches: AUC sorts all predictions. Memory: 4 bytes for each binary sample, and
// as much again while Finish runs; constant for the other kinds.
//
// Not thread-safe: one accumulator for each thread, merged at the end. It owns all it keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lodestone::worker {

class EvaluationMetrics {
 public:
  // What the predictions and labels are.
  enum class Kind {
    kBinary,      // probabilities in [0, 1]; labels 0 or 1
    kMulticlass,  // class indices; labels are class indices
    kRegression,  // numbers; labels are numbers
  };

  struct Result {
    uint64_t samples = 0;
    double loss = 0;                 // Mean over the samples; 0 if there are none.
    std::optional<double> accuracy;  // Binary (a probability >= 0.5 says 1) and multiclass; absent without samples.
    std::optional<double> auc;       // Binary; absent unless both classes occur, or if a prediction is not a number.
    std::optional<double> rmse;      // Regression; absent without samples.
    // Regression: mean |prediction - label|; absent without samples.
    std::optional<double> mae;
    // Binary: the mean log loss (`loss`) over the entropy of the samples' labels, which is the log loss of their share of
    // positives as a constant prediction: below 1 is better than that (He et al. 2014, "Practical lessons from predicting
    // clicks on ads at Facebook", eq. 1). Absent unless both classes occur.
    std::optional<double> normalized_entropy;
    // Binary: the mean prediction over the share of positives, 1 at best (the same, section 2). Absent without positives,
    // or if a prediction is not a number.
    std::optional<double> calibration;
  };

  explicit EvaluationMetrics(Kind kind) : kind_(kind) {}

  // Adds n samples: their predictions and labels, and the sum of their losses.
  void Add(size_t n, const float* predictions, const float* labels, double loss_sum);

  // Adds all samples of `other`. REQUIRES: the same kind; not this object itself.
  void Merge(const EvaluationMetrics& other);

  // The results over all samples so far; more may be added after it.
  Result Finish() const;

 private:
  void AddBinary(float prediction, float label);

  const Kind kind_;
  uint64_t samples_ = 0;
  uint64_t correct_ = 0;
  uint64_t nan_ = 0;  // Predictions that are not numbers; they have no rank.
  double loss_sum_ = 0;
  double squared_error_sum_ = 0;
  double absolute_error_sum_ = 0;
  double prediction_sum_ = 0;  // Binary.
  // Binary predictions by label.
  std::vector<float> negatives_;
  std::vector<float> positives_;
};

// One of a result's metrics.
struct NamedMetric {
  std::string name;  // "accuracy", "auc", "rmse"; empty: there is none.
  double value = 0;
};

// The one that models with such predictions are judged by: auc (binary), accuracy (multiclass) or rmse (regression).
// None if the result lacks it.
NamedMetric JudgedBy(EvaluationMetrics::Kind kind, const EvaluationMetrics::Result& result);

}  // namespace lodestone::worker
