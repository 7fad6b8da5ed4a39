// A trained model in a file of psctl export: its arithmetic, which is the worker's, and its parameters.
//
// Not thread-safe: predictions use scratch memory. The file must not be changed meanwhile: tables of rows stay in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"
#include "server/table/table.h"
#include "tools/psctl/files/safetensors.h"
#include "worker/model/keyed_batch.h"
#include "worker/model/model.h"

namespace lodestone::psctl {

class ModelFile {
 public:
  // Of a FILE.safetensors with a described model and all of its tables. INVALID_ARGUMENT, saying what to do, if it is
  // none; DATA_LOSS if tensors are missing or have other shapes than the description says.
  static absl::StatusOr<std::unique_ptr<ModelFile>> Open(const std::string& path);

  const std::shared_ptr<const v1::ModelDescription>& description() const { return description_; }
  // What the model reads (worker/model/model_description.h).
  const v1::DataConfig& data() const { return config_.data(); }
  const worker::Model& model() const { return *model_; }

  // Predicts the samples of a batch: model().plan().outputs says what (Model::Predict). Returns the sum of their
  // losses. `scores`, [samples]: of logistic and squared models the prediction, of softmax ones the predicted class'
  // probability.
  double Predict(const worker::KeyedBatch& batch, float* predictions, float* scores);

 private:
  // The rows of an embedding table.
  struct Rows {
    std::unique_ptr<server::Table> table;  // What a row that the file does not hold is.
    absl::flat_hash_map<Key, uint64_t> index;
    const uint8_t* values = nullptr;  // Of all rows, one after the other; not aligned.
    std::vector<float> gathered;      // Of the batch.
  };

  ModelFile() = default;
  absl::Status Load();
  absl::Status LoadDense(const v1::TableSpec& table);
  absl::Status LoadRows(const v1::TableSpec& table, const v1::TableSpec& noted, uint64_t seed, uint32_t shards);
  static void Gather(std::span<const Key> keys, Rows* rows);

  std::unique_ptr<Safetensors> file_;
  std::shared_ptr<const v1::ModelDescription> description_;
  v1::Config config_;
  std::unique_ptr<worker::Model> model_;
  std::vector<std::vector<float>> dense_;
  std::vector<Rows> rows_;
  worker::ParameterPointers parameters_;
};

}  // namespace lodestone::psctl
