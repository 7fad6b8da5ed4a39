#include "worker/data/text_loader.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "worker/data/bucket.h"
#include "worker/data/kept_samples.h"
#include "worker/data/label_counts.h"
#include "worker/data/label_index.h"
#include "worker/data/line_parser.h"
#include "worker/data/read_ahead.h"
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
  // `threads`: that parse; with 1 the caller does. `again`: of malformed lines it will be told once more.
  TextFiles(const v1::DataConfig& config, TextFormat* format, uint32_t threads, bool again = false)
      : config_(config), format_(format), threads_(threads), again_(again) {}

  // The samples come in the order of the parts, however many threads parse.
  absl::Status Read(const std::vector<FilePart>& parts, LoadProgress* progress, Sink sink) {
    std::deque<std::unique_ptr<SampleReader>> open;  // Of the parts from the one that is read on; null: it has none.
    size_t opened = 0;
    for (const FilePart& part : parts) {
      while (opened < parts.size() && open.size() < threads_) {
        LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<SampleReader> reader, format_->Open(parts[opened++]));
        if (reader != nullptr && threads_ > 1) reader = std::make_unique<ReadAhead>(std::move(reader));
        open.push_back(std::move(reader));
      }
      const std::unique_ptr<SampleReader> reader = std::move(open.front());
      open.pop_front();
      if (part.file != file_) bad_lines_ = 0;
      file_ = part.file;
      if (reader != nullptr) LODESTONE_RETURN_IF_ERROR(ReadPart(reader.get(), *progress, sink));
      progress->FileDone();
    }
    return absl::OkStatus();
  }
  uint64_t parsed_bytes() const { return parsed_bytes_; }

 private:
  absl::Status ReadPart(SampleReader* reader, const LoadProgress& progress, Sink sink) {
    ParsedLine parsed;
    for (uint64_t count = 1;; ++count) {
      if (count % kLinesPerProgress == 0) progress.At(reader->file_offset());
      LineError error;
      LODESTONE_ASSIGN_OR_RETURN(const LineOutcome outcome, reader->Next(&parsed, &error));
      if (outcome == LineOutcome::kBlank) {
        parsed_bytes_ += reader->bytes_parsed();
        return absl::OkStatus();
      }
      if (outcome == LineOutcome::kSample) LODESTONE_RETURN_IF_ERROR(sink(parsed, &error));
      if (!error.message.empty()) {
        std::string text = absl::StrCat(reader->PlaceOf(reader->position(), error), ": ", error.message);
        if (error.lines > 1) absl::StrAppend(&text, ", and takes the ", error.lines - 1, " lines after it along");
        LODESTONE_RETURN_IF_ERROR(CountBadLines(text, error.lines));
      }
    }
  }

  absl::Status CountBadLines(const std::string& text, uint64_t lines) {
    bad_lines_ += lines;
    if (bad_lines_ <= config_.bad_lines_max()) {
      if (!again_) LODESTONE_LOG(WARN, "data", "malformed line skipped at={}", text);
      return absl::OkStatus();
    }
    if (config_.bad_lines_max() == 0) return absl::InvalidArgumentError(text);
    return absl::InvalidArgumentError(absl::StrCat(text, " (malformed line ", bad_lines_, " of this file; ",
                                                   "data.bad_lines_max is ", config_.bad_lines_max(), ")"));
  }

  const v1::DataConfig& config_;
  TextFormat* const format_;
  const uint32_t threads_;
  const bool again_;
  std::string file_;        // That is read,
  uint64_t bad_lines_ = 0;  // and its malformed lines.
  uint64_t parsed_bytes_ = 0;
};

// INVALID_ARGUMENT, saying what to change, if a worker that reads its share of the files would have to know all of
// them.
absl::Status CheckShare(const v1::DataConfig& config, LabelKind kind, const TextFormat& format) {
  const auto needs_all = [](absl::string_view what, absl::string_view instead) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data.read: share reads a part of the files, and ", what,
        " of all of them; set data.read: all for a first run, whose model later runs go on from, or ", instead));
  };
  if (kind == LabelKind::kClass && config.label_map().empty()) {
    return needs_all("the classes are the labels", "name the classes in data.label_map");
  }
  const std::vector<v1::Transform>& transforms = format.transforms();
  if (std::any_of(transforms.begin(), transforms.end(), Standardizes)) {
    return needs_all("standardized numbers need mean and deviation", "take the transforms none or log");
  }
  if (config.standardize_label()) {
    return needs_all("data.standardize_label needs the labels", "scale them yourself");
  }
  if (format.unknown_bounds() > 0) {
    return needs_all("csv.bucket: quantiles needs the numbers", "take log2");
  }
  return absl::OkStatus();
}

// `samples`: "training" or "test".
absl::Status NothingWeighs(const TextFormat& format, const std::string& file, absl::string_view samples) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": all ", samples, " samples have the weight 0 in ",
                                                 format.WeightColumn(), "; is csv.weight the right column?"));
}

// What was counted over a share is not the data's, and would differ from worker to worker.
void ForgetCounts(Schema* schema) {
  schema->class_counts.assign(schema->class_counts.size(), 0);
  schema->class_weights.clear();
  schema->label_mean = 0;
  schema->train_samples = 0;
  schema->description.set_label_mean(0);
  schema->description.set_samples(0);
  for (auto& one : *schema->description.mutable_classes()) one.set_samples(0);
  for (LabelStatistics& label : schema->labels) label = {.name = label.name};
  for (auto& label : *schema->description.mutable_labels()) {
    label.set_samples(0);
    label.set_positives(0);
  }
}

// Reads the training files for the bounds of csv.bucket, where these are theirs. `labels` has none yet.
absl::Status FindBounds(const v1::DataConfig& config, const std::vector<FilePart>& parts, LabelIndex labels,
                        const Partition& partition, uint32_t threads, TextFormat* format) {
  std::vector<Quantiles> columns(format->unknown_bounds());
  if (columns.empty()) return absl::OkStatus();
  const LoadProgress::Callback nobody;
  LoadProgress progress(nobody, std::vector<uint64_t>(parts.size()));
  uint64_t index = 0;
  TextFiles text(config, format, threads, /*again=*/true);
  LODESTONE_RETURN_IF_ERROR(text.Read(parts, &progress, [&](const ParsedLine& line, LineError* error) {
    float label = 0;
    const bool held_out = partition.HoldsOut(index);
    if (line.labels.empty() && !labels.Add(line.label, &label, &error->message, held_out)) {
      error->column = line.label_column;
      return absl::OkStatus();
    }
    ++index;
    for (size_t c = 0; c < columns.size() && !held_out; ++c) columns[c].Add(line.counted[c]);
    return absl::OkStatus();
  }));
  std::vector<std::vector<double>> bounds;
  for (const Quantiles& column : columns) bounds.push_back(column.Bounds(config.csv().quantiles()));
  format->SetBounds(std::move(bounds));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadedData> LoadText(const v1::DataConfig& config, v1::DataConfig::Format format, const DataFiles& files,
                                    LabelKind kind, Partition partition, const LoadProgress::Callback& callback,
                                    const v1::DataDescription* known, const SampleLimits& limits) {
  const bool several = kind == LabelKind::kSeveral;
  LODESTONE_RETURN_IF_ERROR(CheckLabelColumns(config, kind, known));
  const bool share = config.read() == v1::DataConfig::SHARE && partition.count > 1;
  std::vector<FilePart> train_parts = WholeFiles(files.train);
  if (share) {
    LODESTONE_ASSIGN_OR_RETURN(train_parts, ShareOf(files.train, format, partition));
  }
  const std::vector<FilePart> test_parts = WholeFiles(files.test);
  std::vector<uint64_t> sizes;
  for (const FilePart& part : train_parts) sizes.push_back(part.bytes);
  for (const FilePart& part : test_parts) sizes.push_back(part.bytes);
  LoadProgress progress(callback, std::move(sizes));
  LODESTONE_ASSIGN_OR_RETURN(LabelIndex labels, LabelIndex::Create(several ? LabelKind::kNumber : kind, config, known));
  TextFormat text_format(config, format, known);
  LODESTONE_RETURN_IF_ERROR(text_format.Start(files.train.at(0)));
  if (share && known == nullptr) LODESTONE_RETURN_IF_ERROR(CheckShare(config, kind, text_format));
  LODESTONE_RETURN_IF_ERROR(FindBounds(config, train_parts, labels, partition, files.threads, &text_format));
  TextFiles text(config, &text_format, files.threads);
  Standardizer standardizer(text_format.transforms(), known);
  LabelCounts counts(text_format.LabelNames());

  SampleLimits kept_limits = limits;
  if (share) kept_limits.train_sample = 0;  // There are none but the partition's own.
  LoadedData data;
  data.schema = text_format.schema();
  KeptSamples<StoredDataset> kept(config, kept_limits, 0, [&] {
    return std::make_unique<StoredDataset>(data.schema.numeric_count, data.schema.field_count, data.schema.sparse,
                                           text_format.grouped(), !data.schema.pooling.empty(), text_format.weighted(),
                                           static_cast<uint32_t>(text_format.LabelNames().size()));
  });
  uint64_t index = 0, trained = 0;  // Of all samples; of those, that are not held out.
  double train_weight = 0, test_weight = 0;
  LODESTONE_RETURN_IF_ERROR(text.Read(train_parts, &progress, [&](const ParsedLine& line, LineError* error) {
    float label = 0;
    const bool held_out = partition.HoldsOut(index);
    if (!several && !labels.Add(line.label, &label, &error->message, held_out, line.weight)) {
      error->column = line.label_column;
      return absl::OkStatus();
    }
    if (several && !held_out) counts.Add(line.labels, line.weight);
    ++index;
    (held_out ? test_weight : train_weight) += line.weight;
    if (held_out) return limits.with_test ? kept.AddTest(label, line) : absl::OkStatus();
    standardizer.Add(line.numeric);
    return kept.AddTrain(partition.Has(trained++) || share, label, line);
  }));
  data.parsed_bytes = text.parsed_bytes();
  if (index == 0) return absl::InvalidArgumentError(absl::StrCat(files.train[0], ": no sample in the training files"));
  LODESTONE_RETURN_IF_ERROR(CheckHeldOut(partition, index, trained));
  if (train_weight == 0) return NothingWeighs(text_format, files.train[0], "training");
  labels.Finish();
  if (several) {
    if (known == nullptr && !share) LODESTONE_RETURN_IF_ERROR(counts.Check(files.train[0]));
    counts.FillSchema(&data.schema);
  } else {
    labels.FillSchema(&data.schema);
  }
  standardizer.Finish();
  text_format.Describe(&data.schema.description);
  standardizer.Describe(&data.schema.description);
  several ? counts.Describe(&data.schema.description) : labels.Describe(&data.schema.description);
  if (share && known == nullptr) ForgetCounts(&data.schema);
  const bool own_test = !files.test.empty();
  const auto finish = [&](StoredDataset* samples, bool test) {
    return samples->Finish(test && own_test ? std::vector<float>() : labels.Table(), standardizer);
  };
  LODESTONE_RETURN_IF_ERROR(text.Read(test_parts, &progress, [&](const ParsedLine& line, LineError* error) {
    float label = 0;
    if (!several && !labels.Find(line.label, &label, &error->message)) {
      error->column = line.label_column;
      return absl::OkStatus();
    }
    test_weight += line.weight;
    return kept.AddTest(label, line);
  }));
  LODESTONE_RETURN_IF_ERROR(kept.Give(finish, &data));
  if (own_test && data.test == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(files.test[0], ": no sample in the test files"));
  }
  if (data.test != nullptr && test_weight == 0) {
    return NothingWeighs(text_format, own_test ? files.test[0] : files.train[0], "test");
  }
  return data;
}

}  // namespace lodestone::worker
