#include "worker/data/text_loader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "worker/data/criteo.h"
#include "worker/data/csv.h"
#include "worker/data/csv_layout.h"
#include "worker/data/label_index.h"
#include "worker/data/libsvm.h"
#include "worker/data/line_parser.h"
#include "worker/data/line_reader.h"
#include "worker/data/stored_dataset.h"
#include "worker/data/transform.h"

namespace lodestone::worker {
namespace {

constexpr uint64_t kLinesPerProgress = 8192;

// Takes a sample. A malformed one sets *error; an error that ends the reading is returned.
using Sink = absl::FunctionRef<absl::Status(const ParsedLine&, LineError*)>;

// One line with the physical lines that its quotes join to it.
absl::StatusOr<bool> NextLine(const LineParser& parser, LineReader* reader, absl::string_view* line) {
  LODESTONE_ASSIGN_OR_RETURN(const bool found, reader->Next(line));
  if (!found) return false;
  bool inside = parser.EndsInQuotes(*line, false);
  while (inside) {
    const size_t known = line->size();
    LODESTONE_ASSIGN_OR_RETURN(const bool more, reader->Extend(line));
    if (!more) break;
    inside = parser.EndsInQuotes(line->substr(std::min(known, line->size())), true);
  }
  return true;
}

// Reads the files of one data set, training or test.
class TextFiles {
 public:
  TextFiles(const v1::DataConfig& config, v1::DataConfig::Format format) : config_(config), format_(format) {
    const v1::Transform by_format = format == v1::DataConfig::CRITEO ? v1::LOG : v1::NONE;
    transform_ = ResolveTransform(config.numeric(), by_format);
  }

  // The features, and what is done to the numeric ones, known from the first training file on.
  const Schema& schema() const { return schema_; }
  const std::vector<v1::Transform>& transforms() const { return transforms_; }

  // Opens the first file, for the schema.
  absl::Status Start(const std::string& file) {
    if (format_ == v1::DataConfig::LIBSVM && Standardizes(transform_)) {
      return absl::InvalidArgumentError("data.numeric: libsvm data cannot be standardized, it would not stay sparse");
    }
    schema_.sparse = format_ == v1::DataConfig::LIBSVM;
    if (format_ == v1::DataConfig::CRITEO) {
      schema_.numeric_count = kCriteoNumbers;
      schema_.field_count = kCriteoCategories;
      transforms_.assign(kCriteoNumbers, transform_);
    } else if (format_ == v1::DataConfig::CSV) {
      LODESTONE_ASSIGN_OR_RETURN(first_layout_, Layout(file));
      if (!first_layout_.has_value()) return absl::InvalidArgumentError(absl::StrCat(file, ": the file is empty"));
      schema_.numeric_count = static_cast<uint32_t>(first_layout_->numeric.size());
      schema_.field_count = static_cast<uint32_t>(first_layout_->categorical.size());
      for (const CsvLayout::NumericColumn& column : first_layout_->numeric) transforms_.push_back(column.transform);
    }
    return absl::OkStatus();
  }

  absl::Status Read(const std::vector<std::string>& files, LoadProgress* progress, Sink sink) {
    for (const std::string& file : files) {
      LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<LineParser> parser, Parser(file));
      if (parser != nullptr) LODESTONE_RETURN_IF_ERROR(ReadFile(file, parser.get(), *progress, sink));
      progress->FileDone();
    }
    return absl::OkStatus();
  }

 private:
  // The layout of a CSV file; nothing if it is empty.
  absl::StatusOr<std::optional<CsvLayout>> Layout(const std::string& file) const {
    LODESTONE_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(file));
    const std::string delimiter = config_.csv().delimiter();
    std::vector<std::string> lines;
    absl::string_view line;
    while (lines.size() < 2) {
      CsvLayout plain;
      plain.delimiter = delimiter.empty() ? "," : delimiter;
      LODESTONE_ASSIGN_OR_RETURN(const bool found, NextLine(CsvParser(plain), &reader, &line));
      if (!found) break;
      if (line.find_first_not_of(' ') != absl::string_view::npos) lines.emplace_back(line);
    }
    if (lines.empty()) return std::optional<CsvLayout>();
    std::optional<absl::string_view> second;
    if (lines.size() > 1) second = lines[1];
    LODESTONE_ASSIGN_OR_RETURN(CsvLayout layout, FindCsvLayout(config_.csv(), transform_, file, lines[0], second));
    return std::optional<CsvLayout>(std::move(layout));
  }

  // Null for an empty CSV file.
  absl::StatusOr<std::unique_ptr<LineParser>> Parser(const std::string& file) {
    skip_header_ = false;
    if (format_ == v1::DataConfig::LIBSVM) return std::make_unique<LibsvmParser>(transform_);
    if (format_ == v1::DataConfig::CRITEO) return std::make_unique<CriteoParser>(transform_);
    LODESTONE_ASSIGN_OR_RETURN(std::optional<CsvLayout> layout, Layout(file));
    if (!layout.has_value()) return nullptr;
    const CsvLayout& first = *first_layout_;
    if (layout->numeric_by_default && layout->numeric.size() != first.numeric.size()) {
      return absl::InvalidArgumentError(absl::StrCat(file, ": ", layout->names.size(), " columns, but ",
                                                     first.names.size(), " in the first training file"));
    }
    for (size_t i = 0; i < layout->numeric.size() && layout->has_header && first.has_header; ++i) {
      const std::string& name = layout->names[layout->numeric[i].index];
      const std::string& expected = first.names[first.numeric[i].index];
      if (!layout->numeric_by_default || name == expected) continue;
      return absl::InvalidArgumentError(absl::StrCat(file, ": ", name, " stands where the first training file has ",
                                                     expected, "; name the columns in csv.numeric"));
    }
    skip_header_ = layout->has_header;
    return std::make_unique<CsvParser>(*std::move(layout));
  }

  absl::Status ReadFile(const std::string& file, LineParser* parser, const LoadProgress& progress, Sink sink) {
    LODESTONE_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(file));
    ParsedLine parsed;
    uint64_t bad_lines = 0;
    bool header = skip_header_;
    for (uint64_t count = 1;; ++count) {
      if (count % kLinesPerProgress == 0) progress.At(reader.file_offset());
      absl::string_view line;
      LODESTONE_ASSIGN_OR_RETURN(const bool found, NextLine(*parser, &reader, &line));
      if (!found) return absl::OkStatus();
      if (header) {
        header = line.find_first_not_of(' ') == absl::string_view::npos;
        continue;
      }
      LineError error;
      const LineOutcome outcome = parser->Parse(line, &parsed, &error);
      if (outcome == LineOutcome::kBlank) continue;
      if (outcome == LineOutcome::kSample) LODESTONE_RETURN_IF_ERROR(sink(parsed, &error));
      if (!error.message.empty()) {
        LODESTONE_RETURN_IF_ERROR(CountBadLine(file, reader.line_number(), error, &bad_lines));
      }
    }
  }

  absl::Status CountBadLine(const std::string& file, uint64_t line, const LineError& error, uint64_t* bad_lines) const {
    const std::string text = absl::StrCat(file, ":", line, ":", error.column, ": ", error.message);
    if (++*bad_lines <= config_.bad_lines_max()) {
      LODESTONE_LOG(WARN, "data", "malformed line skipped at={}", text);
      return absl::OkStatus();
    }
    if (config_.bad_lines_max() == 0) return absl::InvalidArgumentError(text);
    return absl::InvalidArgumentError(absl::StrCat(text, " (malformed line ", *bad_lines, " of this file; ",
                                                   "data.bad_lines_max is ", config_.bad_lines_max(), ")"));
  }

  const v1::DataConfig& config_;
  const v1::DataConfig::Format format_;
  v1::Transform transform_;
  Schema schema_;
  std::vector<v1::Transform> transforms_;
  std::optional<CsvLayout> first_layout_;
  bool skip_header_ = false;  // Of the file that Parser was called for last.
};

absl::Status CheckMemory(const v1::DataConfig& config, uint64_t bytes) {
  if (bytes <= config.memory_max_bytes()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the data takes more than ", config.memory_max_bytes(),
                   " bytes of memory; raise data.memory_max_bytes or use more workers"));
}

}  // namespace

absl::StatusOr<LoadedData> LoadText(const v1::DataConfig& config, v1::DataConfig::Format format, const DataFiles& files,
                                    LabelKind kind, Partition partition, const LoadProgress::Callback& callback) {
  std::vector<std::string> all = files.train;
  all.insert(all.end(), files.test.begin(), files.test.end());
  LoadProgress progress(callback, all);
  LODESTONE_ASSIGN_OR_RETURN(LabelIndex labels, LabelIndex::Create(kind, config));
  TextFiles text(config, format);
  LODESTONE_RETURN_IF_ERROR(text.Start(files.train.at(0)));
  Standardizer standardizer(text.transforms());

  LoadedData data;
  data.schema = text.schema();
  const auto make = [&] {
    return std::make_unique<StoredDataset>(data.schema.numeric_count, data.schema.field_count, data.schema.sparse);
  };
  auto train = make();
  uint64_t index = 0;
  LODESTONE_RETURN_IF_ERROR(text.Read(files.train, &progress, [&](const ParsedLine& line, LineError* error) {
    float label = 0;
    if (!labels.Add(line.label, &label, &error->message)) {
      error->column = line.label_column;
      return absl::OkStatus();
    }
    standardizer.Add(line.numeric);
    if (!partition.Has(index++)) return absl::OkStatus();
    train->Append(label, line);
    return CheckMemory(config, train->bytes());
  }));
  if (index == 0) return absl::InvalidArgumentError(absl::StrCat(files.train[0], ": no sample in the training files"));
  labels.Finish();
  labels.FillSchema(&data.schema);
  standardizer.Finish();
  train->Finish([&](float label) { return labels.Final(label); }, standardizer);

  if (!files.test.empty()) {
    auto test = make();
    LODESTONE_RETURN_IF_ERROR(text.Read(files.test, &progress, [&](const ParsedLine& line, LineError* error) {
      float label = 0;
      if (!labels.Find(line.label, &label, &error->message)) {
        error->column = line.label_column;
        return absl::OkStatus();
      }
      test->Append(label, line);
      return CheckMemory(config, train->bytes() + test->bytes());
    }));
    if (test->size() == 0)
      return absl::InvalidArgumentError(absl::StrCat(files.test[0], ": no sample in the test files"));
    test->Finish([](float label) { return label; }, standardizer);
    data.test = std::move(test);
  }
  data.train = std::move(train);
  return data;
}

}  // namespace lodestone::worker
