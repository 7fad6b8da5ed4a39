#include "worker/data/sample_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::worker {
namespace {

// A batch that has so many keys gets no more samples.
constexpr size_t kKeysEnough = 1 << 20;

}  // namespace

SampleStream::SampleStream(v1::DataConfig config, std::shared_ptr<const v1::ModelDescription> model,
                           std::vector<std::string> files, Options options, LabelIndex labels)
    : config_(std::move(config)),
      model_(std::move(model)),
      files_(std::move(files)),
      options_(std::move(options)),
      labels_(std::move(labels)),
      format_(config_, config_.format(), &model_->data(),
              {!options_.labels, options_.id_column, model_->data().group()}) {}

absl::StatusOr<std::unique_ptr<SampleStream>> SampleStream::Open(v1::DataConfig config,
                                                                 std::shared_ptr<const v1::ModelDescription> model,
                                                                 std::vector<std::string> files, Options options) {
  const v1::DataConfig::Format format = config.format();
  const bool has_columns = format == v1::DataConfig::CSV || format == v1::DataConfig::PARQUET;
  if (!has_columns && format != v1::DataConfig::LIBSVM && format != v1::DataConfig::CRITEO) {
    return absl::UnimplementedError(absl::StrCat("the model was trained on ", model->data().format(),
                                                 " data; only csv, parquet, libsvm and criteo files are read here"));
  }
  if (!options.id_column.empty() && !has_columns) {
    return absl::InvalidArgumentError(
        absl::StrCat("samples of ", model->data().format(), " files have no column that names them"));
  }
  const LabelKind kind = model->data().classes_size() > 0 ? LabelKind::kClass : LabelKind::kNumber;
  LODESTONE_ASSIGN_OR_RETURN(LabelIndex labels, LabelIndex::Create(kind, config, &model->data()));
  labels.Finish();
  std::unique_ptr<SampleStream> stream(
      new SampleStream(std::move(config), std::move(model), std::move(files), std::move(options), std::move(labels)));
  LODESTONE_RETURN_IF_ERROR(stream->format_.Start(stream->files_.at(0)));
  stream->standardizer_.emplace(stream->format_.transforms(), &stream->model_->data());
  return stream;
}

absl::Status SampleStream::Next(size_t max, Batch* batch, std::vector<std::string>* ids) {
  batch->size = 0;
  batch->labels.clear();
  batch->numeric.clear();
  batch->offsets.assign(1, 0);
  batch->keys.clear();
  batch->values.clear();
  batch->groups.clear();
  ids->clear();
  while (batch->size < max && batch->keys.size() < kKeysEnough) {
    if (reader_ == nullptr) {
      LODESTONE_ASSIGN_OR_RETURN(const bool opened, OpenNext());
      if (!opened) return absl::OkStatus();
    }
    LODESTONE_ASSIGN_OR_RETURN(const bool read, ReadSample(batch, ids));
    if (!read) reader_.reset();
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SampleStream::OpenNext() {
  while (file_ < files_.size()) {
    LODESTONE_ASSIGN_OR_RETURN(reader_, format_.Open(files_[file_++]));
    if (reader_ != nullptr) return true;  // Otherwise it is empty.
  }
  return false;
}

absl::StatusOr<bool> SampleStream::ReadSample(Batch* batch, std::vector<std::string>* ids) {
  LineError error;
  LODESTONE_ASSIGN_OR_RETURN(const LineOutcome outcome, reader_->Next(&parsed_, &error));
  if (outcome == LineOutcome::kBlank) return false;
  if (outcome == LineOutcome::kMalformed) return ErrorAt(error);
  float label = 0;
  if (options_.labels && !labels_.Find(parsed_.label, &label, &error.message)) {
    error.column = parsed_.label_column;
    return ErrorAt(error);
  }
  Append(label, batch);
  ids->push_back(options_.id_column.empty() ? absl::StrCat(samples_)
                                            : std::string(parsed_.id.data(), parsed_.id.size()));
  ++samples_;
  return true;
}

void SampleStream::Append(float label, Batch* batch) {
  if (standardizer_->active()) standardizer_->Apply({parsed_.numeric.data(), parsed_.numeric.size()});
  ++batch->size;
  batch->labels.push_back(label);
  if (format_.grouped()) batch->groups.push_back(parsed_.group);
  batch->numeric.insert(batch->numeric.end(), parsed_.numeric.begin(), parsed_.numeric.end());
  if (!parsed_.values.empty() && batch->values.empty()) batch->values.resize(batch->keys.size(), 1.0f);
  batch->keys.insert(batch->keys.end(), parsed_.keys.begin(), parsed_.keys.end());
  if (!parsed_.values.empty()) {
    batch->values.insert(batch->values.end(), parsed_.values.begin(), parsed_.values.end());
  } else if (!batch->values.empty()) {
    batch->values.resize(batch->keys.size(), 1.0f);
  }
  batch->offsets.push_back(static_cast<uint32_t>(batch->keys.size()));
}

absl::Status SampleStream::ErrorAt(const LineError& error) const {
  return absl::InvalidArgumentError(absl::StrCat(reader_->PlaceOf(error), ": ", error.message));
}

}  // namespace lodestone::worker
