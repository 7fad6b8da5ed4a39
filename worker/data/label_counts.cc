#include "worker/data/label_counts.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace lodestone::worker {

absl::Status CheckLabelColumns(const v1::DataConfig& config, LabelKind kind, const v1::DataDescription* known) {
  const int labels = config.csv().labels_size();
  if (kind != LabelKind::kSeveral) {
    if (labels > 0) {
      return absl::InvalidArgumentError(
          "data.csv.labels names several labels, and the model takes one; set model.type: multitask, or name one "
          "column "
          "in data.csv.label");
    }
    if (known == nullptr || known->labels_size() == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the model that is trained on has ", known->labels_size(),
                                                   " labels, and the configured one takes one; set model.type: "
                                                   "multitask, as it was"));
  }
  if (labels == 0) {
    return absl::InvalidArgumentError(
        "model.type: multitask takes several labels; name their columns in data.csv.labels, such as [click, "
        "conversion]");
  }
  if (config.label_map_size() > 0 || config.standardize_label()) {
    return absl::InvalidArgumentError(
        absl::StrCat(config.label_map_size() > 0 ? "data.label_map" : "data.standardize_label",
                     " is for one label, and data.csv.labels names several, which are 0 or 1; leave it out"));
  }
  if (known != nullptr && known->labels_size() == 0) {
    return absl::InvalidArgumentError(
        "the model that is trained on has one label, and the configured one several; set model.type as it was");
  }
  return absl::OkStatus();
}

void PutLabels(std::span<const float> labels, float weight, size_t sample, size_t samples, float* to,
               float* to_weights) {
  for (size_t k = 0; k < labels.size(); ++k) {
    const bool is_missing = std::isnan(labels[k]);
    to[k * samples + sample] = is_missing ? 0 : labels[k];
    to_weights[k * samples + sample] = is_missing ? 0 : weight;
  }
}

LabelCounts::LabelCounts(std::span<const std::string> names) {
  for (const std::string& name : names) labels_.emplace_back().name = name;
}

void LabelCounts::Add(std::span<const float> labels, float weight) {
  ++samples_;
  for (size_t k = 0; k < labels_.size(); ++k) {
    if (std::isnan(labels[k])) continue;
    ++labels_[k].samples;
    labels_[k].weight += weight;
    if (labels[k] == 0) continue;
    ++labels_[k].positives;
    labels_[k].positive_weight += weight;
  }
}

absl::Status LabelCounts::Check(const std::string& file) const {
  for (const LabelStatistics& label : labels_) {
    const bool is_one = label.positives == label.samples;
    if (!is_one && label.positives > 0) continue;
    const std::string why = label.samples == 0 ? "missing in all training samples"
                                               : absl::StrCat(is_one ? 1 : 0, " in all training samples that have it");
    return absl::InvalidArgumentError(absl::StrCat(file, ": the label ", label.name, " is ", why,
                                                   ": there is nothing to learn; leave it out of csv.labels"));
  }
  return absl::OkStatus();
}

void LabelCounts::FillSchema(Schema* schema) const {
  schema->train_samples = samples_;
  schema->labels = labels_;
}

void LabelCounts::Describe(v1::DataDescription* description) const {
  description->set_samples(samples_);
  for (size_t k = 0; k < labels_.size(); ++k) {
    v1::DataDescription::Label& label = *description->mutable_labels(static_cast<int>(k));
    label.set_samples(labels_[k].samples);
    label.set_positives(labels_[k].positives);
  }
}

}  // namespace lodestone::worker
