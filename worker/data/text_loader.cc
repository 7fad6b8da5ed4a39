#include "worker/data/text_loader.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "worker/data/even_sample.h"
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

// What is kept of the files' samples: the partition, the test set, and the sample of all partitions.
class KeptSamples {
 public:
  KeptSamples(const v1::DataConfig& config, const TextFormat& format, const Partition& partition,
              const SampleLimits& limits)
      : config_(config),
        partition_(partition),
        limits_(limits),
        train_(Make(format)),
        train_sample_(Make(format), std::max<uint64_t>(1, limits.train_sample)),
        test_(Make(format), limits.test) {}

  // A training sample, in the order of the files.
  absl::Status AddTrain(float label, const ParsedLine& line) {
    if (partition_.Has(trained_++)) train_->Append(label, line);
    LODESTONE_RETURN_IF_ERROR(CheckMemory(config_, needed()));
    if (limits_.train_sample == 0) return absl::OkStatus();
    train_sample_.Offer(label, line);
    train_sample_.FitInto(config_.memory_max_bytes() - needed());
    return absl::OkStatus();
  }
  absl::Status AddTest(float label, const ParsedLine& line) {
    test_.Offer(label, line);
    return CheckMemory(config_, needed());
  }

  uint64_t trained() const { return trained_; }  // Training samples, of all partitions.

  // Once all training samples are there; `test_label` for those of the test set.
  void Finish(const std::function<float(float)>& label, const std::function<float(float)>& test_label,
              const Standardizer& standardizer, LoadedData* data) {
    std::unique_ptr<StoredDataset> sample = train_sample_.Take(), test = test_.Take();
    train_->Finish(label, standardizer);
    sample->Finish(label, standardizer);
    test->Finish(test_label, standardizer);
    data->train = std::move(train_);
    if (limits_.train_sample > 0) data->train_sample = std::move(sample);
    if (test->size() > 0) data->test = std::move(test);
  }

 private:
  static std::unique_ptr<StoredDataset> Make(const TextFormat& format) {
    const Schema& schema = format.schema();
    return std::make_unique<StoredDataset>(schema.numeric_count, schema.field_count, schema.sparse, format.grouped());
  }
  uint64_t needed() const { return train_->bytes() + test_.bytes(); }

  const v1::DataConfig& config_;
  const Partition& partition_;
  const SampleLimits& limits_;
  std::unique_ptr<StoredDataset> train_;
  EvenSample<StoredDataset> train_sample_;
  EvenSample<StoredDataset> test_;
  uint64_t trained_ = 0;
};

}  // namespace

absl::StatusOr<LoadedData> LoadText(const v1::DataConfig& config, v1::DataConfig::Format format, const DataFiles& files,
                                    LabelKind kind, Partition partition, const LoadProgress::Callback& callback,
                                    const v1::DataDescription* known, const SampleLimits& limits) {
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
  KeptSamples kept(config, text_format, partition, limits);
  uint64_t index = 0;
  LODESTONE_RETURN_IF_ERROR(text.Read(files.train, &progress, [&](const ParsedLine& line, LineError* error) {
    float label = 0;
    const bool held_out = partition.HoldsOut(index);
    if (!labels.Add(line.label, &label, &error->message, held_out)) {
      error->column = line.label_column;
      return absl::OkStatus();
    }
    ++index;
    if (held_out) return limits.with_test ? kept.AddTest(label, line) : absl::OkStatus();
    standardizer.Add(line.numeric);
    return kept.AddTrain(label, line);
  }));
  if (index == 0) return absl::InvalidArgumentError(absl::StrCat(files.train[0], ": no sample in the training files"));
  LODESTONE_RETURN_IF_ERROR(CheckHeldOut(partition, index, kept.trained()));
  labels.Finish();
  labels.FillSchema(&data.schema);
  standardizer.Finish();
  text_format.Describe(&data.schema.description);
  standardizer.Describe(&data.schema.description);
  labels.Describe(&data.schema.description);
  const auto final_label = [&](float label) { return labels.Final(label); };
  if (files.test.empty()) {
    kept.Finish(final_label, final_label, standardizer, &data);
    return data;
  }
  LODESTONE_RETURN_IF_ERROR(text.Read(files.test, &progress, [&](const ParsedLine& line, LineError* error) {
    float label = 0;
    if (!labels.Find(line.label, &label, &error->message)) {
      error->column = line.label_column;
      return absl::OkStatus();
    }
    return kept.AddTest(label, line);
  }));
  kept.Finish(
      final_label, [](float label) { return label; }, standardizer, &data);
  if (data.test == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(files.test[0], ": no sample in the test files"));
  }
  return data;
}

}  // namespace lodestone::worker
