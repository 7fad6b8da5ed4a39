#include "worker/data/text_loader.h"

#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "worker/data/label_index.h"
#include "worker/data/line_parser.h"
#include "worker/data/sample_reader.h"
#include "worker/data/stored_dataset.h"
#include "worker/data/text_format.h"
#include "worker/data/transform.h"

namespace lodestone::worker {
namespace {

constexpr uint64_t kLinesPerProgress = 8192;

// Takes a sample. A malformed one sets *error; an error that ends the reading is returned.
using Sink = absl::FunctionRef<absl::Status(const ParsedLine&, LineError*)>;

// Reads the files of one data set, training or test.
class TextFiles {
 public:
  TextFiles(const v1::DataConfig& config, TextFormat* format) : config_(config), format_(format) {}

  absl::Status Read(const std::vector<std::string>& files, LoadProgress* progress, Sink sink) {
    for (const std::string& file : files) {
      LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<SampleReader> reader, format_->Open(file));
      if (reader != nullptr) LODESTONE_RETURN_IF_ERROR(ReadFile(reader.get(), *progress, sink));
      progress->FileDone();
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadFile(SampleReader* reader, const LoadProgress& progress, Sink sink) {
    ParsedLine parsed;
    uint64_t bad_lines = 0;
    for (uint64_t count = 1;; ++count) {
      if (count % kLinesPerProgress == 0) progress.At(reader->file_offset());
      LineError error;
      LODESTONE_ASSIGN_OR_RETURN(const LineOutcome outcome, reader->Next(&parsed, &error));
      if (outcome == LineOutcome::kBlank) return absl::OkStatus();
      if (outcome == LineOutcome::kSample) LODESTONE_RETURN_IF_ERROR(sink(parsed, &error));
      if (!error.message.empty()) {
        LODESTONE_RETURN_IF_ERROR(CountBadLine(absl::StrCat(reader->PlaceOf(error), ": ", error.message), &bad_lines));
      }
    }
  }

  absl::Status CountBadLine(const std::string& text, uint64_t* bad_lines) const {
    if (++*bad_lines <= config_.bad_lines_max()) {
      LODESTONE_LOG(WARN, "data", "malformed line skipped at={}", text);
      return absl::OkStatus();
    }
    if (config_.bad_lines_max() == 0) return absl::InvalidArgumentError(text);
    return absl::InvalidArgumentError(absl::StrCat(text, " (malformed line ", *bad_lines, " of this file; ",
                                                   "data.bad_lines_max is ", config_.bad_lines_max(), ")"));
  }

  const v1::DataConfig& config_;
  TextFormat* const format_;
};

absl::Status CheckMemory(const v1::DataConfig& config, uint64_t bytes) {
  if (bytes <= config.memory_max_bytes()) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the data takes more than ", config.memory_max_bytes(),
                   " bytes of memory; raise data.memory_max_bytes or use more workers"));
}

}  // namespace

absl::StatusOr<LoadedData> LoadText(const v1::DataConfig& config, v1::DataConfig::Format format, const DataFiles& files,
                                    LabelKind kind, Partition partition, const LoadProgress::Callback& callback,
                                    const v1::DataDescription* known) {
  std::vector<std::string> all = files.train;
  all.insert(all.end(), files.test.begin(), files.test.end());
  LoadProgress progress(callback, all);
  LODESTONE_ASSIGN_OR_RETURN(LabelIndex labels, LabelIndex::Create(kind, config, known));
  TextFormat text_format(config, format, known);
  LODESTONE_RETURN_IF_ERROR(text_format.Start(files.train.at(0)));
  TextFiles text(config, &text_format);
  Standardizer standardizer(text_format.transforms(), known);

  LoadedData data;
  data.schema = text_format.schema();
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
  text_format.Describe(&data.schema.description);
  standardizer.Describe(&data.schema.description);
  labels.Describe(&data.schema.description);
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
