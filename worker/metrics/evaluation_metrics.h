// The exact metrics of a model over a data set, independent of batching.
//
// Results are exact, not averages over batches: AUC sorts all predictions. Memory: 4 bytes for each binary sample (28
// where samples have groups, and 4 more where they have weights), and as much again while Finish runs; constant for the
// other kinds. Only retrieval is among the items of a batch.
//
// Where samples have weights, each mean, share and count below is weighted: a sample of weight 2 counts as two equal
// ones.
//
// Not thread-safe: one accumulator for each thread, merged at the end. It owns all it keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lodestone::worker {

// One of a result's metrics.
struct NamedMetric {
  std::string name;  // "accuracy", "auc", "rmse"; of one of several labels "conversion/auc"; empty: there is none.
  double value = 0;
};

class EvaluationMetrics {
 public:
  // The k of top-k accuracy, and of retrieval's recall.
  static constexpr size_t kTopK = 5;
  static constexpr size_t kRecallK = 10;

  // What the predictions and labels are.
  enum class Kind {
    kBinary,      // probabilities in [0, 1]; labels 0 or 1
    kMulticlass,  // class indices; labels are class indices
    kRegression,  // numbers; labels are numbers
    kRetrieval,   // a sample's own item among its batch's, the candidates: candidates' indices; labels are those
  };

  struct Result {
    uint64_t samples = 0;
    // Mean over the samples; 0 if there are none, not a number if they weigh nothing or have no label.
    double loss = 0;
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
    // Retrieval: share of the samples whose item has the greatest score of the batch's candidates (in-batch accuracy),
    // or one of the kRecallK greatest; and the mean of 1 / (its place among them, from 1). Absent without samples, the
    // last two also where samples come without logits.
    std::optional<double> recall_at_1;
    std::optional<double> recall_at_10;
    std::optional<double> mrr;
    double weight = 0;  // The samples' weights, each 1 where they have none.
    // Of several labels: the metrics of each, of the samples that have it. `loss` is the mean over the samples of the
    // sum of their labels' weighted losses, and there is nothing else.
    std::vector<NamedMetric> of_labels;
    std::vector<std::string> missing_labels;  // Those that no sample has, or none that weighs anything.
  };

  // What some metrics need beside predictions and labels.
  struct Details {
    const uint64_t* groups = nullptr;      // [n]: equal for samples of one group. Null: there are none.
    const float* weights = nullptr;        // [n]: finite, not negative. Null: each counts 1.
    const float* logits = nullptr;         // Multiclass: [n, classes]; retrieval: [n, candidates]. Null: not given.
    size_t classes = 0;                    // Or candidates, or labels.
    const float* label_weights = nullptr;  // Of several labels: Batch::label_weights, [labels, n].
  };

  // `label_names`: of several labels, which are binary; else empty.
  explicit EvaluationMetrics(Kind kind, std::vector<std::string> label_names = {});

  // Adds n samples: their predictions and labels, and the weighted sum of their losses. Of several labels `labels` is
  // [labels, n], predictions are not read, and `details` must have logits, [n, labels], and label_weights.
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
    float weight;
    bool positive;
  };

  // Predictions of one class, or group, with their weights.
  struct Ranked {
    std::vector<float> predictions;
    std::vector<float> weights;  // Beside them; empty: each counts 1.

    void Add(float prediction, float weight);
    void Append(const Ranked& other);
    double Weight() const;
  };

  // The area under the ROC curve. REQUIRES: both have a weight above 0.
  static double Auc(Ranked negatives, Ranked positives);
  static double WeightedAuc(const Ranked& negatives, const Ranked& positives);
  void AddBinary(float prediction, float label, float weight);
  void AddLogits(size_t n, const Details& details, const float* labels);
  void AddLabels(size_t n, const Details& details, const float* labels);
  std::optional<double> Gauc() const;

  const Kind kind_;
  uint64_t samples_ = 0;
  double weight_sum_ = 0;
  double correct_ = 0;  // Weighted, as all sums.
  uint64_t nan_ = 0;    // Predictions that are not numbers; they have no rank.
  double loss_sum_ = 0;
  double squared_error_sum_ = 0;
  double absolute_error_sum_ = 0;
  double prediction_sum_ = 0;  // Binary.
  // Binary predictions by label.
  Ranked negatives_;
  Ranked positives_;
  std::vector<GroupSample> group_samples_;  // Binary, where samples have groups.
  double ranked_ = 0;                       // Multiclass, retrieval: samples that came with logits; and of those,
  double in_top_ = 0;                       // these are in the top kTopK, or kRecallK;
  double reciprocal_ranks_ = 0;             // and their 1 / place.
  const std::vector<std::string> label_names_;
  std::vector<EvaluationMetrics> of_labels_;  // Beside them.
};

// All metrics that a result has, in the order in which people read them: the loss first.
std::vector<NamedMetric> MetricsOf(const EvaluationMetrics::Result& result);

// The one that models with such predictions are judged by: auc (binary), accuracy (multiclass), rmse (regression) or
// recall (retrieval, at 10 if there are logits); of several labels the loss. None if the result lacks it.
NamedMetric JudgedBy(EvaluationMetrics::Kind kind, const EvaluationMetrics::Result& result);
// Whether less of a metric is better.
bool LowerIsBetter(const NamedMetric& metric);
// The names of the metrics that say which of two such results is better.
std::vector<std::string> JudgingMetrics(EvaluationMetrics::Kind kind, const std::vector<std::string>& label_names);

}  // namespace lodestone::worker
