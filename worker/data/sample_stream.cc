#include "worker/data/sample_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/data/batch_builder.h"
#include "worker/data/criteo_npy.h"
#include "worker/data/file_list.h"
#include "worker/data/label_counts.h"

namespace lodestone::worker {
SampleStream::SampleStream(v1::DataConfig config, std::shared_ptr<const v1::ModelDescription> model,
                           std::vector<std::string> files, Options options, LabelIndex labels)
    : config_(std::move(config)),
      model_(std::move(model)),
      files_(std::move(files)),
      options_(std::move(options)),
      labels_(std::move(labels)),
      format_(config_, config_.format(), &model_->data(),
              {!options_.labels, options_.id_column, model_->data().group(),
               options_.labels ? model_->data().weight() : ""}) {}

absl::StatusOr<std::unique_ptr<SampleStream>> SampleStream::Open(v1::DataConfig config,
                                                                 std::shared_ptr<const v1::ModelDescription> model,
                                                                 std::vector<std::string> files, Options options) {
  const v1::DataConfig::Format format = config.format();
  const bool has_columns = format == v1::DataConfig::CSV || format == v1::DataConfig::PARQUET;
  const bool images = format == v1::DataConfig::IDX;
  const bool sparse = format == v1::DataConfig::LIBSVM || format == v1::DataConfig::LIBFFM;
  const bool npy = format == v1::DataConfig::CRITEO_NPY;
  if (!has_columns && !images && !sparse && !npy && format != v1::DataConfig::CRITEO) {
    return absl::UnimplementedError(
        absl::StrCat("the model was trained on ", model->data().format(), " data, of which there are no files"));
  }
  if (!options.id_column.empty() && !has_columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("samples of ", model->data().format(), " files have no column that names them"));
  }
  if (npy) {
    LODESTONE_ASSIGN_OR_RETURN(files, DaysOf(files, "--data"));
  }
  const LabelKind kind = model->data().classes_size() > 0 ? LabelKind::kClass : LabelKind::kNumber;
  LODESTONE_ASSIGN_OR_RETURN(LabelIndex labels, LabelIndex::Create(kind, config, &model->data()));
  labels.Finish();
  std::unique_ptr<SampleStream> stream(
      new SampleStream(std::move(config), std::move(model), std::move(files), std::move(options), std::move(labels)));
  if (images) {
    LODESTONE_ASSIGN_OR_RETURN(stream->pixels_, KnownPixels(stream->config_, stream->model_->data()));
    return stream;
  }
  LODESTONE_RETURN_IF_ERROR(stream->format_.Start(stream->files_.at(0)));
  stream->standardizer_.emplace(stream->format_.transforms(), &stream->model_->data());
  return stream;
}

absl::Status SampleStream::Next(size_t max, Batch* batch, std::vector<std::string>* ids) {
  ClearBatch(batch);
  ids->clear();
  several_.clear();
  while (batch->size < max && batch->keys.size() < kKeysEnough && batch->numeric.size() < kNumbersEnough) {
    if (reader_ == nullptr) {
      LODESTONE_ASSIGN_OR_RETURN(const bool opened, OpenNext());
      if (!opened) break;
    }
    LODESTONE_ASSIGN_OR_RETURN(const bool read, ReadSample(batch, ids));
    if (!read) reader_.reset();
  }
  if (!several_.empty()) PutSeveralLabels(batch);
  return absl::OkStatus();
}

void SampleStream::PutSeveralLabels(Batch* batch) const {
  const size_t labels = several_.size() / batch->size;
  batch->labels.resize(several_.size());
  batch->label_weights.resize(several_.size());
  for (size_t i = 0; i < batch->size; ++i) {
    PutLabels({several_.data() + i * labels, labels}, batch->weights.empty() ? 1.0f : batch->weights[i], i, batch->size,
              batch->labels.data(), batch->label_weights.data());
  }
}

absl::StatusOr<bool> SampleStream::OpenNext() {
  while (file_ < files_.size()) {
    const std::string& file = files_[file_++];
    LODESTONE_ASSIGN_OR_RETURN(reader_, pixels_ != nullptr ? OpenImageFile(file) : format_.Open({.file = file}));
    if (reader_ != nullptr) return true;  // Otherwise it is empty.
  }
  return false;
}

absl::StatusOr<std::unique_ptr<SampleReader>> SampleStream::OpenImageFile(const std::string& images) const {
  if (!options_.labels) return OpenImages(pixels_, images, "");
  const absl::StatusOr<std::string> labels = LabelFileOf(images, "");
  if (labels.ok()) return OpenImages(pixels_, images, *labels);
  return absl::NotFoundError(absl::StrCat(
      images, ": its labels are wanted, in a file beside it that is called so with labels-idx1 for images-idx3; there ",
      "is none"));
}

absl::StatusOr<bool> SampleStream::ReadSample(Batch* batch, std::vector<std::string>* ids) {
  LineError error;
  parsed_.weight = 1;           // Where the file has no weights,
  parsed_.group = GroupOf("");  // or no groups.
  LODESTONE_ASSIGN_OR_RETURN(const LineOutcome outcome, reader_->Next(&parsed_, &error));
  if (outcome == LineOutcome::kBlank) return false;
  if (outcome == LineOutcome::kMalformed) return ErrorAt(error);
  float label = 0;
  const bool several = model_->data().labels_size() > 0;
  if (options_.labels && several) several_.insert(several_.end(), parsed_.labels.begin(), parsed_.labels.end());
  if (options_.labels && !several && !labels_.Find(parsed_.label, &label, &error.message)) {
    error.column = parsed_.label_column;
    return ErrorAt(error);
  }
  if (standardizer_.has_value() && standardizer_->active()) {
    standardizer_->Apply({parsed_.numeric.data(), parsed_.numeric.size()});
  }
  AppendSample(label, parsed_, batch);
  if (format_.grouped()) batch->groups.push_back(parsed_.group);
  if (options_.labels && !model_->data().weight().empty()) batch->weights.push_back(parsed_.weight);
  ids->push_back(options_.id_column.empty() ? absl::StrCat(samples_)
                                            : std::string(parsed_.id.data(), parsed_.id.size()));
  ++samples_;
  return true;
}

absl::Status SampleStream::ErrorAt(const LineError& error) const {
  return absl::InvalidArgumentError(absl::StrCat(reader_->PlaceOf(reader_->position(), error), ": ", error.message));
}

}  // namespace lodestone::worker
