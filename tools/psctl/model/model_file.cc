#include "tools/psctl/model/model_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/wire/message.h"
#include "google/protobuf/util/json_util.h"
#include "proto/checkpoint.pb.h"
#include "tools/psctl/files/model_metadata.h"
#include "tools/psctl/model/predictor.h"
#include "worker/model/description_check.h"
#include "worker/model/model_description.h"

namespace lodestone::psctl {
namespace {

// The tensor of a table; DATA_LOSS if it is not there, or has another type or shape.
absl::StatusOr<const Safetensors::View*> TensorOf(const Safetensors& file, const std::string& name,
                                                  const std::vector<std::string>& types,
                                                  const std::vector<uint64_t>& shape) {
  const auto found = file.tensors().find(name);
  if (found == file.tensors().end()) {
    return absl::DataLossError(
        absl::StrCat("tensor `", name, "`, which the model needs, is not there; export it whole"));
  }
  const Safetensors::View& view = found->second;
  if (std::find(types.begin(), types.end(), view.type) != types.end() && view.shape == shape) return &view;
  return absl::DataLossError(absl::StrCat("tensor `", name, "` is ", view.type, " [", absl::StrJoin(view.shape, ", "),
                                          "], not ", types.front(), " [", absl::StrJoin(shape, ", "), "]"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFile>> ModelFile::Open(const std::string& path, const std::string& name) {
  if (absl::EndsWith(path, ".npz")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": models are read from safetensors files; export the model to one"));
  }
  auto made = std::unique_ptr<ModelFile>(new ModelFile);
  made->name_ = name;
  LODESTONE_ASSIGN_OR_RETURN(made->file_, Safetensors::Open(path));
  LODESTONE_RETURN_IF_ERROR(Annotate(made->Load(), path));
  return made;
}

absl::Status ModelFile::Load() {
  v1::ServerManifest noted;
  v1::ModelDescription description;
  google::protobuf::util::JsonParseOptions parse;
  parse.ignore_unknown_fields = true;
  using google::protobuf::util::JsonStringToMessage;
  const std::string& cluster = file_->metadata(kClusterMetadata);
  const std::string& model = file_->metadata(kModelMetadata);
  if (cluster.empty() || model.empty()) {
    return absl::InvalidArgumentError(
        "the file describes no model; make it with psctl local --model, or with psctl export of a checkpoint of a "
        "trained model");
  }
  if (!JsonStringToMessage(cluster, &noted, parse).ok() || !JsonStringToMessage(model, &description, parse).ok()) {
    return absl::DataLossError("its metadata is damaged");
  }
  LODESTONE_RETURN_IF_ERROR(worker::CheckDescription(description));
  description_ = std::make_shared<const v1::ModelDescription>(std::move(description));
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Predictor> predictor, Predictor::Create(description_));
  groups_ = predictor->model().plan().groups;
  auto dense = std::make_shared<DenseTables>();
  for (const v1::TableSpec& table : predictor->model().tables()) {
    if (table.has_dense()) {
      LODESTONE_RETURN_IF_ERROR(LoadDense(table, dense.get()));
      continue;
    }
    const auto found = std::find_if(noted.tables().begin(), noted.tables().end(),
                                    [&](const v1::TableSpec& one) { return one.name() == table.name(); });
    if (found == noted.tables().end()) {
      return absl::DataLossError(absl::StrCat("table `", table.name(), "` is not in its metadata"));
    }
    LODESTONE_RETURN_IF_ERROR(LoadRows(table, *found, noted.seed(), noted.shards()));
  }
  dense_ = std::move(dense);
  return absl::OkStatus();
}

absl::Status ModelFile::LoadDense(const v1::TableSpec& table, DenseTables* dense) {
  const std::vector<uint64_t> shape(table.dense().dims().begin(), table.dense().dims().end());
  LODESTONE_ASSIGN_OR_RETURN(const Safetensors::View* const view, TensorOf(*file_, table.name(), {"F32"}, shape));
  std::vector<float>& values = dense->emplace_back(view->bytes.size() / sizeof(float));
  std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
  return absl::OkStatus();
}

absl::Status ModelFile::LoadRows(const v1::TableSpec& table, const v1::TableSpec& noted, uint64_t seed,
                                 uint32_t shards) {
  const std::string keys_name = table.name() + ".keys";
  const auto found = file_->tensors().find(keys_name);
  const uint64_t count = found == file_->tensors().end() || found->second.shape.empty() ? 0 : found->second.shape[0];
  LODESTONE_ASSIGN_OR_RETURN(const Safetensors::View* const keys, TensorOf(*file_, keys_name, {"U64", "I64"}, {count}));
  LODESTONE_ASSIGN_OR_RETURN(const Safetensors::View* const values,
                             TensorOf(*file_, table.name() + ".values", {"F32"}, {count, table.embedding().dim()}));
  Rows& rows = rows_.emplace_back();
  LODESTONE_ASSIGN_OR_RETURN(rows.table, server::Table::Create(noted, seed, std::max(1u, shards)));
  if (rows.table->is_dense() || rows.table->dim() != table.embedding().dim()) {
    return absl::DataLossError(absl::StrCat("table `", table.name(), "` is ", rows.table->ShapeText(),
                                            " in its metadata, and the model needs embedding dim ",
                                            table.embedding().dim()));
  }
  rows.values = values->bytes.data();
  rows.index.reserve(count);
  for (uint64_t i = 0; i < count; ++i) rows.index.emplace(LoadAt<Key>(keys->bytes.data(), i), i);
  return absl::OkStatus();
}

void ModelFile::Gather(std::span<const Key> keys, const Rows& rows, std::vector<float>* values) {
  const size_t dim = rows.table->dim();
  values->resize(keys.size() * dim);
  for (size_t i = 0; i < keys.size(); ++i) {
    float* const row = values->data() + i * dim;
    const auto found = rows.index.find(keys[i]);
    if (found == rows.index.end()) {
      rows.table->InitializeRow(keys[i], row);
    } else {
      std::memcpy(row, rows.values + found->second * dim * sizeof(float), dim * sizeof(float));
    }
  }
}

absl::Status ModelFile::Read(const worker::KeyedBatch& batch, BatchParameters* parameters) {
  parameters->dense = dense_;
  parameters->rows.resize(rows_.size());
  parameters->pointers.clear();
  for (const std::vector<float>& table : *dense_) parameters->pointers.push_back(table.data());
  for (size_t i = 0; i < rows_.size(); ++i) {
    Gather(batch.KeysOf(groups_.OfTable(i)), rows_[i], &parameters->rows[i]);
    parameters->pointers.push_back(parameters->rows[i].data());
  }
  return absl::OkStatus();
}

}  // namespace lodestone::psctl
