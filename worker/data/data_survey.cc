#include "worker/data/data_survey.h"

#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status.h"
#include "worker/data/idx.h"
#include "worker/data/label_counts.h"
#include "worker/data/label_index.h"
#include "worker/data/number.h"
#include "worker/data/sample_reader.h"
#include "worker/data/text_format.h"
#include "worker/data/transform.h"

namespace lodestone::worker {
namespace {

using Format = v1::DataConfig;

constexpr uint64_t kTestRows = 1000;
constexpr size_t kDistinctMax = 1 << 16;     // Values of a column that are counted,
constexpr size_t kDistinctAllMax = 1 << 22;  // of all columns,
constexpr size_t kKeysMax = 1 << 24;         // and keys.
constexpr uint64_t kRowsToTell = 20;         // Fewer rows may have equal values and labels by chance.

// A column while its rows are read.
class ColumnCount {
 public:
  explicit ColumnCount(SurveyedColumn column) : column_(std::move(column)) {}

  void AddNumber(double number, double label, bool label_is_number, size_t* room) {
    const bool is_missing = std::isnan(number);
    if (!is_missing) {
      column_.least = numbers_ == 0 ? number : std::min(column_.least, number);
      column_.greatest = numbers_ == 0 ? number : std::max(column_.greatest, number);
      ++numbers_;
    }
    is_label_ = is_label_ && label_is_number && number == label;
    Add(is_missing ? kMissing : std::bit_cast<uint64_t>(number + 0.0), is_missing, label, room);
  }
  void AddCategory(Key key, bool is_missing, double label, size_t* room) {
    is_label_ = false;
    Add(key, is_missing, label, room);
  }

  SurveyedColumn Finish(uint64_t rows, bool several_labels) {
    column_.distinct = labels_.size();
    column_.is_label = is_label_ && rows > 0 && several_labels;
    column_.tells_label =
        tells_ && !column_.more && several_labels && rows >= kRowsToTell && labels_.size() * 2 <= rows;
    return std::move(column_);
  }

 private:
  static constexpr uint64_t kMissing = 0x7ff8000000000001;  // No number's bits, as NaN is none.

  void Add(uint64_t value, bool is_missing, double label, size_t* room) {
    column_.missing += is_missing;
    if (column_.more) return;
    const auto found = labels_.find(value);
    if (found != labels_.end()) {
      tells_ = tells_ && found->second == label;
    } else if (labels_.size() == kDistinctMax || *room == 0) {
      column_.more = true;
    } else {
      labels_.emplace(value, label);
      --*room;
    }
  }

  SurveyedColumn column_;
  absl::flat_hash_map<uint64_t, double> labels_;  // By value: that of the first row that has it.
  uint64_t numbers_ = 0;
  bool tells_ = true;
  bool is_label_ = true;
};

// The configuration with which numbers come as they stand in the files, and missing ones as NaN.
v1::DataConfig Untransformed(v1::DataConfig config, Format::Format format) {
  if (format == Format::LIBSVM || format == Format::LIBFFM) return config;
  config.set_numeric(v1::STANDARDIZE);
  config.mutable_csv()->clear_transform();
  config.mutable_csv()->clear_missing_indicator();
  for (auto& entry : *config.mutable_csv()->mutable_datetime()) entry.second.set_transform(v1::STANDARDIZE);
  return config;
}

// A column's name, and what part of its time is the feature.
template <typename Column>
std::string NameOf(const Column& column) {
  return column.has_time() ? absl::StrCat(column.name(), ":", column.time().part()) : column.name();
}

class Survey {
 public:
  Survey(const v1::DataConfig& config, DataSurvey* out, LabelIndex labels, uint64_t rows_max)
      : config_(config),
        raw_(Untransformed(config, out->found.format)),
        out_(*out),
        labels_(std::move(labels)),
        rows_max_(rows_max),
        format_(raw_, out->found.format, nullptr) {}

  absl::Status Run() {
    LODESTONE_RETURN_IF_ERROR(Start());
    uint64_t bytes_read = 0;
    out_.whole = true;
    for (size_t f = 0; f < out_.found.files.train.size(); ++f) {
      if (out_.rows == rows_max_) out_.whole = false;
      if (out_.rows == rows_max_) break;
      LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<SampleReader> reader, Open(f, /*test=*/false));
      if (reader == nullptr) continue;
      LODESTONE_RETURN_IF_ERROR(ReadFile(reader.get()));
      bytes_read += reader->file_offset();
    }
    if (out_.rows == 0) {
      return absl::InvalidArgumentError(absl::StrCat(out_.found.files.train[0], ": no sample in the training files"));
    }
    const double share = static_cast<double>(out_.bytes) / static_cast<double>(std::max<uint64_t>(1, bytes_read));
    out_.samples_about =
        out_.whole ? out_.rows : static_cast<uint64_t>(static_cast<double>(out_.rows) * std::max(1.0, share));
    labels_.Finish();
    if (counts_.has_value()) {
      counts_->FillSchema(&out_.schema);
      counts_->Describe(&out_.schema.description);
    } else {
      labels_.FillSchema(&out_.schema);
      labels_.Describe(&out_.schema.description);
    }
    const bool several_labels = out_.schema.class_names.size() > 1 || (numbers_ && least_label_ < greatest_label_);
    for (ColumnCount& column : columns_) out_.columns.push_back(column.Finish(out_.rows, several_labels));
    out_.keys = keys_.size();
    out_.numeric_labels = numbers_;
    return ReadTest();
  }

 private:
  bool is_image() const { return out_.found.format == Format::IDX; }

  absl::Status Start() {
    for (const std::string& file : out_.found.files.train) {
      struct stat info;
      if (stat(file.c_str(), &info) == 0) out_.bytes += static_cast<uint64_t>(info.st_size);
    }
    const std::string& first = out_.found.files.train[0];
    if (is_image()) {
      LODESTONE_ASSIGN_OR_RETURN(pixels_, RawPixels(first));
      out_.schema.numeric_count = pixels_->pixels;
      out_.schema.description.set_format("idx");
      return absl::OkStatus();
    }
    TextFormat as_configured(config_, out_.found.format, nullptr);
    LODESTONE_RETURN_IF_ERROR(as_configured.Start(first));
    LODESTONE_RETURN_IF_ERROR(format_.Start(first));
    out_.schema = as_configured.schema();
    const std::vector<std::string> labels = as_configured.LabelNames();
    if (!labels.empty()) counts_.emplace(labels);
    v1::DataDescription& described = out_.schema.description;
    as_configured.Describe(&described);
    for (const auto& column : described.numeric()) {
      if (column.indicates_missing()) continue;
      columns_.emplace_back(SurveyedColumn{.name = NameOf(column), .is_number = true, .rule = column.transform()});
    }
    numeric_ = columns_.size();
    for (const auto& column : described.categorical()) {
      columns_.emplace_back(SurveyedColumn{.name = NameOf(column),
                                           .rule = column.pooling().empty() ? column.bucket() : column.pooling()});
      empty_.push_back(StableHash("", column.salt()));
    }
    if (out_.schema.sparse) columns_.clear();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<SampleReader>> Open(size_t f, bool test) {
    const FoundData& found = out_.found;
    const std::string& file = test ? found.files.test[f] : found.files.train[f];
    if (!is_image()) return format_.Open({.file = file});
    return OpenImages(pixels_, file, test ? found.test_labels[f] : found.train_labels[f]);
  }

  absl::Status ReadFile(SampleReader* reader) {
    ParsedLine parsed;
    uint64_t malformed = 0;
    while (true) {
      LineError error;
      LODESTONE_ASSIGN_OR_RETURN(const LineOutcome outcome, reader->Next(&parsed, &error));
      if (outcome == LineOutcome::kBlank) return absl::OkStatus();
      if (out_.rows == rows_max_) {
        out_.whole = false;
        return absl::OkStatus();
      }
      float label = 0;
      const bool is_sample =
          outcome == LineOutcome::kSample &&
          (counts_.has_value() || labels_.Add(parsed.label, &label, &error.message, /*held_out=*/false, parsed.weight));
      if (is_sample) {
        if (counts_.has_value()) counts_->Add(parsed.labels, parsed.weight);
        AddRow(parsed, label);
        continue;
      }
      if (outcome == LineOutcome::kSample) error.column = parsed.label_column;
      if ((malformed += error.lines) > config_.bad_lines_max()) {
        return absl::InvalidArgumentError(
            absl::StrCat(reader->PlaceOf(reader->position(), error), ": ", error.message));
      }
      out_.malformed += error.lines;
    }
  }

  // `label`: its provisional one, which is the number itself, or stands for the class.
  void AddRow(const ParsedLine& parsed, float label) {
    ++out_.rows;
    out_.weight_sum += parsed.weight;
    out_.weight_least = out_.rows == 1 ? parsed.weight : std::min<double>(out_.weight_least, parsed.weight);
    out_.weight_greatest = std::max<double>(out_.weight_greatest, parsed.weight);
    out_.weightless += parsed.weight == 0;
    double number = 0;
    const bool is_number = ParseNumber(parsed.label, &number);
    numbers_ = numbers_ && is_number;
    if (is_number) {
      least_label_ = std::min(least_label_, number);
      greatest_label_ = std::max(greatest_label_, number);
    }
    out_.features += parsed.keys.size();
    for (const Key key : parsed.keys) {
      if (keys_.size() < kKeysMax) keys_.insert(key);
    }
    if (columns_.empty()) return;
    // Numbers came as floats: so does the label that they are compared with.
    const double compared = is_number ? static_cast<float>(number) : label;
    for (size_t i = 0; i < numeric_; ++i) columns_[i].AddNumber(parsed.numeric[i], compared, is_number, &room_);
    size_t at = 0;
    for (size_t f = 0; f < empty_.size(); ++f) {
      const uint32_t count = parsed.field_keys.empty() ? 1 : parsed.field_keys[f];
      uint64_t value = parsed.keys[at];
      for (uint32_t i = 1; i < count; ++i) value = Mix64(value ^ parsed.keys[at + i]);
      columns_[numeric_ + f].AddCategory(value, count == 1 && value == empty_[f], compared, &room_);
      at += count;
    }
  }

  // Whether the first test file that has samples is read as the training files are.
  absl::Status ReadTest() {
    const std::vector<std::string>& files = out_.found.files.test;
    if (files.empty()) return absl::OkStatus();
    bool any = false;
    for (size_t f = 0; f < files.size() && !any; ++f) {
      LODESTONE_ASSIGN_OR_RETURN(any, ReadTestFile(f));
    }
    if (any) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(files[0], ": no sample in the test files"));
  }

  // Whether there is anything in a test file.
  absl::StatusOr<bool> ReadTestFile(size_t file) {
    LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<SampleReader> reader, Open(file, /*test=*/true));
    ParsedLine parsed;
    uint64_t samples = 0, malformed = 0;
    for (uint64_t i = 0; i < kTestRows && reader != nullptr; ++i) {
      LineError error;
      LODESTONE_ASSIGN_OR_RETURN(const LineOutcome outcome, reader->Next(&parsed, &error));
      if (outcome == LineOutcome::kBlank) break;
      float label = 0;
      // Labels that these rows do not have may stand in others.
      const bool unknown = outcome == LineOutcome::kSample && out_.whole && !counts_.has_value() &&
                           !labels_.Find(parsed.label, &label, &error.message);
      samples += outcome == LineOutcome::kSample;
      if (outcome == LineOutcome::kSample && !unknown) continue;
      if (unknown) error.column = parsed.label_column;
      if ((malformed += error.lines) > config_.bad_lines_max()) {
        return absl::InvalidArgumentError(
            absl::StrCat(reader->PlaceOf(reader->position(), error), ": ", error.message));
      }
    }
    return reader == nullptr || samples + malformed > 0;
  }

  const v1::DataConfig& config_;
  const v1::DataConfig raw_;
  DataSurvey& out_;
  LabelIndex labels_;
  std::optional<LabelCounts> counts_;  // Of several labels; nothing is said of what tells them.
  const uint64_t rows_max_;
  TextFormat format_;
  std::shared_ptr<const PixelTransform> pixels_;  // Of images.
  std::vector<ColumnCount> columns_;              // Numbers, then categories.
  size_t numeric_ = 0;
  std::vector<Key> empty_;  // By category: the key of a missing one.
  size_t room_ = kDistinctAllMax;
  absl::flat_hash_set<Key> keys_;
  bool numbers_ = true;  // All labels are.
  double least_label_ = HUGE_VAL;
  double greatest_label_ = -HUGE_VAL;
};

}  // namespace

absl::StatusOr<DataSurvey> SurveyData(const v1::DataConfig& config, LabelKind kind, uint64_t rows_max) {
  DataSurvey out;
  LODESTONE_ASSIGN_OR_RETURN(out.found, FindData(config, /*with_test=*/true));
  LODESTONE_RETURN_IF_ERROR(CheckLabelColumns(config, kind, nullptr));
  out.format_detected = config.format() == Format::AUTO;
  LODESTONE_ASSIGN_OR_RETURN(LabelIndex labels,
                             LabelIndex::Create(kind == LabelKind::kSeveral ? LabelKind::kNumber : kind, config));
  LODESTONE_RETURN_IF_ERROR(Survey(config, &out, std::move(labels), rows_max).Run());
  return out;
}

}  // namespace lodestone::worker
