// The exact metrics of a model over a data set, independent of batching.
//
// Results are exact, not averages over batches: AUC sorts all predictions. Memory: 4 bytes for each binary sample (20
// where samples have groups), and as much again while Finish runs; constant for the other kinds.
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
  // The k of top-k accuracy.
  static constexpr size_t kTopK = 5;

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
    // Binary: the mean log loss (`loss`) over the entropy of the samples' labels, which is the log loss of their share
    // of positives as a constant prediction: below 1 is better than that (He et al. 2014, "Practical lessons from
    // predicting clicks on ads at Facebook", eq. 1). Absent unless both classes occur.
    std::optional<double> normalized_entropy;
    // Binary: the mean prediction over the share of positives, 1 at best (the same, section 2). Absent without
    // positives, or if a prediction is not a number.
    std::optional<double> calibration;
    // Binary, where samples have groups: the mean over the groups of their auc, weighted by their samples; groups with
    // one class only are left out (Zhu et al. 2017, "Optimized cost per click in Taobao display advertising"). Absent
    // unless some group has both classes, or if a prediction is not a number.
    std::optional<double> gauc;
    // Multiclass: share of the samples whose class has one of the kTopK greatest logits. Absent without samples, and
    // where samples come without logits or there are no more than kTopK classes.
    std::optional<double> top5_accuracy;
  };

  // What some metrics need beside predictions and labels.
  struct Details {
    const uint64_t* groups = nullptr;  // [n]: equal for samples of one group. Null: there are none.
    const float* logits = nullptr;     // Multiclass: [n, classes]. Null: not given.
    size_t classes = 0;
  };

  explicit EvaluationMetrics(Kind kind) : kind_(kind) {}

  // Adds n samples: their predictions and labels, and the sum of their losses.
  void Add(size_t n, const float* predictions, const float* labels, double loss_sum, const Details& details);
  void Add(size_t n, const float* predictions, const float* labels, double loss_sum) {
    Add(n, predictions, labels, loss_sum, Details());
  }

  // Adds all samples of `other`. REQUIRES: the same kind; not this object itself.
  void Merge(const EvaluationMetrics& other);

  // The results over all samples so far; more may be added after it.
  Result Finish() const;

 private:
  struct GroupSample {
    uint64_t group;
    float prediction;
    bool positive;
  };

  void AddBinary(float prediction, float label);
  void AddLogits(size_t n, const float* logits, size_t classes, const float* labels);
  std::optional<double> Gauc() const;

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
  std::vector<GroupSample> group_samples_;  // Binary, where samples have groups.
  uint64_t ranked_ = 0;                     // Multiclass: samples that came with logits; and of those,
  uint64_t in_top_ = 0;                     // these are in the top kTopK.
};

// One of a result's metrics.
struct NamedMetric {
  std::string name;  // "accuracy", "auc", "rmse"; empty: there is none.
  double value = 0;
};

// All metrics that a result has, in the order in which people read them: the loss first.
std::vector<NamedMetric> MetricsOf(const EvaluationMetrics::Result& result);

// The one that models with such predictions are judged by: auc (binary), accuracy (multiclass) or rmse (regression).
// None if the result lacks it.
NamedMetric JudgedBy(EvaluationMetrics::Kind kind, const EvaluationMetrics::Result& result);
// Whether less of a metric is better.
bool LowerIsBetter(const NamedMetric& metric);

}  // namespace lodestone::worker
