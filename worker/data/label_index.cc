#include "worker/data/label_index.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "worker/data/line_parser.h"
#include "worker/data/number.h"

namespace lodestone::worker {
namespace {

constexpr size_t kClassesShown = 10;

// -0 and 0 are one number.
bool ParseLabelNumber(absl::string_view text, double* number) {
  if (!ParseNumber(text, number)) return false;
  *number += 0.0;
  return true;
}

// The number that is a label's identity, so that 1 and 1.0 are one class. False for a text that is none, and for whole
// numbers that doubles do not tell apart, whose text is it: ids of 64 bits, for example.
bool ParseClassNumber(absl::string_view text, double* number) {
  constexpr double kExactMax = 9007199254740992;  // 2^53: from here on some are not there.
  return ParseLabelNumber(text, number) && std::fabs(*number) < kExactMax;
}

}  // namespace

absl::StatusOr<LabelIndex> LabelIndex::Create(LabelKind kind, const v1::DataConfig& config,
                                              const v1::DataDescription* known) {
  LabelIndex index(kind);
  index.standardizes_ = config.standardize_label();
  if (index.standardizes_ && kind == LabelKind::kClass) {
    return absl::InvalidArgumentError(
        "data.standardize_label scales numbers, and the model takes labels as classes; leave it out, or set "
        "model.loss: "
        "squared");
  }
  if (known != nullptr) {
    if ((kind == LabelKind::kClass) != (known->classes_size() > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the model tells ", known->classes_size() > 0 ? "classes" : "numbers", ", and model.loss asks for ",
          kind == LabelKind::kClass ? "classes" : "numbers", "; set model.loss as it was"));
    }
    index.SetClasses(*known);
    return index;
  }
  if (config.label_map().empty()) return index;
  if (kind == LabelKind::kNumber) {
    return absl::InvalidArgumentError("data.label_map names classes, but the squared loss takes labels as numbers");
  }
  if (absl::Status status = index.SetMap(config); !status.ok()) return status;
  return index;
}

absl::Status LabelIndex::SetMap(const v1::DataConfig& config) {
  mapped_ = true;
  const std::map<std::string, uint32_t> sorted(config.label_map().begin(), config.label_map().end());
  uint32_t classes = 0;
  for (const auto& entry : sorted) {
    if (entry.second >= limits::kClassesMax) {
      return absl::InvalidArgumentError(absl::StrCat("data.label_map: class ", entry.second, " of label ",
                                                     Quoted(entry.first), " is not below ", limits::kClassesMax));
    }
    classes = std::max(classes, entry.second + 1);
  }
  std::vector<std::vector<std::string>> names(classes);
  for (const auto& entry : sorted) {
    const auto id = static_cast<uint32_t>(texts_.size());
    double number = 0;
    if (ParseClassNumber(entry.first, &number)) {
      const auto [equal, inserted] = numbers_.emplace(number, id);
      if (!inserted && class_of_id_[equal->second] != entry.second) {
        return absl::InvalidArgumentError(absl::StrCat("data.label_map: ", Quoted(texts_[equal->second]), " and ",
                                                       Quoted(entry.first), " are one number but two classes"));
      }
    }
    ids_.emplace(entry.first, id);
    texts_.push_back(entry.first);
    class_of_id_.push_back(entry.second);
    names[entry.second].push_back(entry.first);
  }
  for (uint32_t c = 0; c < classes; ++c) {
    if (names[c].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("data.label_map: no label means class ", c, ", but one means ",
                                                     "class ", classes - 1, "; classes are counted from 0"));
    }
    class_names_.push_back(absl::StrJoin(names[c], "|"));
  }
  counts_.resize(texts_.size());
  weights_.resize(texts_.size());
  return absl::OkStatus();
}

void LabelIndex::SetClasses(const v1::DataDescription& known) {
  mapped_ = known_ = known.classes_size() > 0;
  for (const v1::DataDescription::Class& one : known.classes()) {
    for (const std::string& text : one.labels()) {
      const auto id = static_cast<uint32_t>(texts_.size());
      if (!ids_.emplace(text, id).second) continue;
      double number = 0;
      if (ParseClassNumber(text, &number)) numbers_.emplace(number, id);
      texts_.push_back(text);
      class_of_id_.push_back(static_cast<uint32_t>(class_names_.size()));
    }
    class_names_.push_back(one.name());
  }
  counts_.resize(texts_.size());
  weights_.resize(texts_.size());
}

int64_t LabelIndex::IdOf(absl::string_view text) const {
  if (const auto known = ids_.find(text); known != ids_.end()) return known->second;
  double number = 0;
  if (!all_numbers_ || !ParseClassNumber(text, &number)) return -1;
  const auto equal = numbers_.find(number);
  return equal == numbers_.end() ? -1 : int64_t{equal->second};
}

std::string LabelIndex::UnknownLabel(absl::string_view text) const {
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(class_names_.size(), kClassesShown); ++i) shown.push_back(class_names_[i]);
  return absl::StrCat("label ", Quoted(text), " is not among the ", class_names_.size(),
                      known_    ? " classes of the model ("
                      : mapped_ ? " classes of data.label_map ("
                                : " classes of the training files (",
                      absl::StrJoin(shown, ", "), class_names_.size() > kClassesShown ? ", ..." : "", ")");
}

void LabelIndex::CountNumber(double number, double weight) {
  if (samples_ == 0) shift_ = number;
  const double difference = number - shift_;
  sum_ += weight * number;
  difference_sum_ += weight * difference;
  square_sum_ += weight * difference * difference;
}

double LabelIndex::Deviation() const {
  if (weight_sum_ == 0) return 1;
  const double mean = difference_sum_ / weight_sum_;
  const double variance = square_sum_ / weight_sum_ - mean * mean;
  // Rounding leaves up to about 1e-16 of the square in the difference above.
  return variance > 1e-14 * mean * mean ? std::sqrt(variance) : 1;
}

bool LabelIndex::Add(absl::string_view text, float* provisional, std::string* error, bool held_out, float weight) {
  if (kind_ == LabelKind::kNumber) {
    double number = 0;
    if (!ParseLabelNumber(text, &number)) {
      *error = absl::StrCat("label ", Quoted(text), " is not a number, as the loss of the model needs it");
      return false;
    }
    if (!held_out) {
      CountNumber(number, weight);
      weight_sum_ += weight;
      weighted_ = weighted_ || weight != 1;
      ++samples_;
    }
    *provisional = static_cast<float>(number);
    return true;
  }
  if (samples_ == 0 || text != last_text_) {
    const auto known = ids_.find(text);
    int64_t id = known != ids_.end() ? int64_t{known->second} : mapped_ ? IdOf(text) : -1;
    if (id < 0) {
      if (text.empty() || mapped_) {
        *error = text.empty() ? "the label is missing" : UnknownLabel(text);
        return false;
      }
      if (texts_.size() >= limits::kClassesMax) {
        *error = absl::StrCat("more than ", limits::kClassesMax,
                              " distinct labels; if they are numbers to predict, set model.loss to squared");
        return false;
      }
      id = static_cast<int64_t>(texts_.size());
      ids_.emplace(text, id);
      texts_.emplace_back(text);
      counts_.push_back(0);
      weights_.push_back(0);
      double number = 0;
      all_numbers_ = all_numbers_ && ParseLabelNumber(text, &number);
    }
    last_text_.assign(text.data(), text.size());
    last_id_ = static_cast<uint32_t>(id);
  }
  if (!held_out) {
    ++counts_[last_id_];
    weights_[last_id_] += weight;
    weight_sum_ += weight;
    weighted_ = weighted_ || weight != 1;
    ++samples_;
  }
  *provisional = static_cast<float>(last_id_);
  return true;
}

void LabelIndex::Finish() {
  finished_ = true;
  if (mapped_ || kind_ == LabelKind::kNumber) return;
  std::vector<double> numbers(texts_.size());
  for (size_t i = 0; all_numbers_ && i < texts_.size(); ++i) ParseLabelNumber(texts_[i], &numbers[i]);
  std::vector<uint32_t> order(texts_.size());
  std::iota(order.begin(), order.end(), 0);
  double exact = 0;
  const auto is_exact = [&](uint32_t id) { return all_numbers_ && ParseClassNumber(texts_[id], &exact); };
  // Equal numbers stay in order of appearance: the first spelling names the class.
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    if (all_numbers_ && (numbers[a] != numbers[b] || is_exact(a))) return numbers[a] < numbers[b];
    return texts_[a] < texts_[b];
  });
  class_of_id_.resize(texts_.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const bool same = i > 0 && is_exact(order[i]) && numbers[order[i - 1]] == numbers[order[i]];
    if (!same) class_names_.push_back(texts_[order[i]]);
    class_of_id_[order[i]] = static_cast<uint32_t>(class_names_.size() - 1);
    if (is_exact(order[i])) numbers_.emplace(numbers[order[i]], order[i]);
  }
}

float LabelIndex::Final(float provisional) const {
  if (kind_ == LabelKind::kNumber) return provisional;
  return static_cast<float>(class_of_id_[static_cast<size_t>(provisional)]);
}

std::vector<float> LabelIndex::Table() const {
  if (kind_ == LabelKind::kNumber) return {};
  return {class_of_id_.begin(), class_of_id_.end()};
}

bool LabelIndex::Find(absl::string_view text, float* label, std::string* error) const {
  if (kind_ == LabelKind::kNumber) {
    double number = 0;
    if (!ParseLabelNumber(text, &number)) {
      *error = absl::StrCat("label ", Quoted(text), " is not a number, as the loss of the model needs it");
      return false;
    }
    *label = static_cast<float>(number);
    return true;
  }
  const int64_t id = IdOf(text);
  if (id < 0) {
    *error = text.empty() ? "the label is missing" : UnknownLabel(text);
    return false;
  }
  *label = static_cast<float>(class_of_id_[static_cast<size_t>(id)]);
  return true;
}

void LabelIndex::FillSchema(Schema* schema) const {
  schema->train_samples = samples_;
  double sum = sum_;
  if (kind_ == LabelKind::kClass) {
    schema->class_names = class_names_;
    schema->class_counts.assign(class_names_.size(), 0);
    schema->class_weights.assign(weighted_ ? class_names_.size() : 0, 0);
    sum = 0;
    for (size_t id = 0; id < texts_.size(); ++id) {
      schema->class_counts[class_of_id_[id]] += counts_[id];
      if (weighted_) schema->class_weights[class_of_id_[id]] += weights_[id];
      sum += weights_[id] * class_of_id_[id];
    }
  }
  schema->label_mean = weight_sum_ == 0 ? 0 : sum / weight_sum_;
  schema->label_deviation = standardizes_ ? Deviation() : 0;
}

void LabelIndex::Describe(v1::DataDescription* description) const {
  Schema schema;
  FillSchema(&schema);
  description->set_label_mean(schema.label_mean);
  description->set_label_deviation(schema.label_deviation);
  description->set_samples(schema.train_samples);
  for (size_t c = 0; c < schema.class_names.size(); ++c) {
    v1::DataDescription::Class& one = *description->add_classes();
    one.set_name(schema.class_names[c]);
    one.set_samples(schema.class_counts[c]);
  }
  for (size_t id = 0; id < texts_.size() && !schema.class_names.empty(); ++id) {
    description->mutable_classes(static_cast<int>(class_of_id_[id]))->add_labels(texts_[id]);
  }
}

}  // namespace lodestone::worker
