// Several labels of each sample (csv.labels), each 0, 1 or missing: whether they fit the model and the data, and how
// many samples have each.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

// INVALID_ARGUMENT, saying what to change, if the configuration names the columns of several labels and the model takes
// one, or the other way round, or has settings that are for one label; or if what `known` describes (null: no model is
// trained on) has another number of them.
absl::Status CheckLabelColumns(const v1::DataConfig& config, LabelKind kind, const v1::DataDescription* known);

// The labels of a sample, NaN where one is missing, as a batch has them: adds `labels` and `label_weights`, sample by
// sample, to arrays [labels, samples] of `samples`, of which this is number `sample`.
void PutLabels(std::span<const float> labels, float weight, size_t sample, size_t samples, float* to,
               float* to_weights);

class LabelCounts {
 public:
  // Of labels with these names.
  explicit LabelCounts(std::span<const std::string> names);

  // A training sample's labels, NaN where one is missing, and what it counts. REQUIRES: one for each name.
  void Add(std::span<const float> labels, float weight);

  // INVALID_ARGUMENT, naming the column, if a label is missing in all samples, or has one value in all that have it.
  // `file`: the first one, for the error.
  absl::Status Check(const std::string& file) const;
  // Sets the schema's label fields and train_samples.
  void FillSchema(Schema* schema) const;
  // Sets the fields about labels. REQUIRES: it has the labels' names.
  void Describe(v1::DataDescription* description) const;

 private:
  uint64_t samples_ = 0;
  std::vector<LabelStatistics> labels_;
};

}  // namespace lodestone::worker
