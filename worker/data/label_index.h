// Labels as text and what they mean: a class or a number.
//
// Not thread-safe. While the training files are read every label gets a provisional value, since the classes' order is
// known only in the end: Add for each sample, then Finish, then Final for what Add gave. Equal numbers below 2^53 are
// one class, however they are written: 1, +1 and 1.0. Greater ones, which a double may not tell apart, are as texts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

class LabelIndex {
 public:
  // With data.label_map, labels are what it says; otherwise classes are the distinct labels in ascending order, or
  // numbers. INVALID_ARGUMENT if the map leaves a class without label, maps equal numbers to different classes or comes
  // with numbers.
  // With `known` (may be null), the classes are those of the model that it describes, whatever the configuration says;
  // INVALID_ARGUMENT if they are not of this kind.
  static absl::StatusOr<LabelIndex> Create(LabelKind kind, const v1::DataConfig& config,
                                           const v1::DataDescription* known = nullptr);

  // Counts the label of a training sample and gives its provisional value; false, and *error says why, if it is none.
  // One that is held out makes its label a class, but does not count; means are weighted.
  bool Add(absl::string_view text, float* provisional, std::string* error, bool held_out = false, float weight = 1);

  // No more training samples follow.
  void Finish();

  // What a provisional value comes to. REQUIRES: Finish was called.
  float Final(float provisional) const;
  // The same of all provisional values, by value; empty: they are final. REQUIRES: Finish was called.
  std::vector<float> Table() const;

  // The label of a test sample; false, and *error says why, if it is none or not a class of the training files.
  // REQUIRES: Finish was called.
  bool Find(absl::string_view text, float* label, std::string* error) const;

  // Sets the schema's label fields and train_samples. REQUIRES: Finish was called.
  void FillSchema(Schema* schema) const;
  // Sets the fields about labels. REQUIRES: Finish was called.
  void Describe(v1::DataDescription* description) const;

 private:
  explicit LabelIndex(LabelKind kind) : kind_(kind) {}

  absl::Status SetMap(const v1::DataConfig& config);
  void SetClasses(const v1::DataDescription& known);
  // The id of `text` or of a number equal to it among those known; -1 if there is none.
  int64_t IdOf(absl::string_view text) const;
  void CountNumber(double number, double weight);
  double Deviation() const;
  std::string UnknownLabel(absl::string_view text) const;

  LabelKind kind_;
  bool mapped_ = false;  // By data.label_map, or by what the model knows.
  bool known_ = false;   // By that.
  bool finished_ = false;
  uint64_t samples_ = 0;
  bool weighted_ = false;      // Some weight is not 1.
  bool standardizes_ = false;  // data.standardize_label.
  double weight_sum_ = 0;
  // Of numbers, weighted: themselves, their differences from the first one, which do not cancel, and the squares of
  // these.
  double sum_ = 0;
  double shift_ = 0;
  double difference_sum_ = 0;
  double square_sum_ = 0;

  // Texts seen (or mapped), by order of appearance: ids. ids_ holds all spellings, numbers_ those that are numbers
  // below 2^53.
  absl::flat_hash_map<std::string, uint32_t> ids_;
  absl::flat_hash_map<double, uint32_t> numbers_;
  std::vector<std::string> texts_;  // By id: the first spelling.
  std::vector<uint64_t> counts_;    // By id.
  std::vector<double> weights_;     // By id.
  bool all_numbers_ = true;
  std::string last_text_;  // The label before, most likely the same one.
  uint32_t last_id_ = 0;

  std::vector<uint32_t> class_of_id_;  // Set by Finish or SetMap.
  std::vector<std::string> class_names_;
};

}  // namespace lodestone::worker
