// quality_data --config FILE --set ... --out FOLDER: what a configuration trains on and starts from, for another
// program (torch_model.py): FOLDER/data.npz with the samples of all partitions as the worker sees them (hashed,
// transformed) and the initial values as the servers would make them; FOLDER/model.json with the model's plan and its
// tables.
//
// Of each set ("train", "test"): SET/labels [n], SET/numeric [n, numeric_count], SET/offsets [n + 1] and SET/rows, the
// features of sample i being rows offsets[i] ... offsets[i + 1] - 1; SET/values beside rows, if they are not all 1. Of
// each table: start/NAME, of an embedding table one row for each distinct key of both sets, which `rows` count. And
// `prior`.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/options.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"
#include "server/table/table.h"
#include "tools/psctl/files/tensor_file.h"
#include "worker/data/dataset.h"
#include "worker/model/model_plan.h"
#include "worker/model/model_tables.h"

namespace lodestone::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kSamplesPerRead = 1 << 16;

// Tensors in memory, until they are written as one file.
class Tensors {
 public:
  template <typename T>
  void Add(const std::string& name, psctl::TensorType type, std::vector<uint64_t> shape, const std::vector<T>& values) {
    tensors_.push_back({name, type, std::move(shape)});
    const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
    contents_.emplace_back(bytes, bytes + values.size() * sizeof(T));
  }
  absl::Status Write(const std::string& path) const {
    LODESTONE_ASSIGN_OR_RETURN(const auto file, psctl::TensorFile::Create(path, tensors_, {}));
    for (const std::vector<uint8_t>& content : contents_) LODESTONE_RETURN_IF_ERROR(file->Append(content));
    return file->Finish();
  }

 private:
  std::vector<psctl::Tensor> tensors_;
  std::vector<std::vector<uint8_t>> contents_;
};

// The rows of keys, in the order of their first appearance.
class KeyRows {
 public:
  int64_t RowOf(Key key) {
    const auto [at, is_new] = rows_.try_emplace(key, static_cast<int64_t>(keys_.size()));
    if (is_new) keys_.push_back(key);
    return at->second;
  }
  const std::vector<Key>& keys() const { return keys_; }

 private:
  std::unordered_map<Key, int64_t> rows_;
  std::vector<Key> keys_;
};

void AddSet(const std::string& name, const worker::Dataset& data, uint32_t numeric_count, KeyRows* keys,
            Tensors* tensors) {
  const uint64_t size = data.size();
  std::vector<float> labels, numeric, values;
  std::vector<int64_t> offsets = {0}, rows;
  worker::Batch batch;
  std::vector<uint64_t> indices;
  for (uint64_t begin = 0; begin < size; begin += kSamplesPerRead) {
    indices.resize(std::min(kSamplesPerRead, size - begin));
    std::iota(indices.begin(), indices.end(), begin);
    data.Read(indices, &batch);
    labels.insert(labels.end(), batch.labels.begin(), batch.labels.end());
    numeric.insert(numeric.end(), batch.numeric.begin(), batch.numeric.end());
    if (!batch.values.empty()) values.resize(rows.size(), 1.0f);
    const auto before = static_cast<int64_t>(rows.size());
    for (const Key key : batch.keys) rows.push_back(keys->RowOf(key));
    if (!batch.values.empty() || !values.empty()) {
      values.insert(values.end(), batch.values.begin(), batch.values.end());
      values.resize(rows.size(), 1.0f);
    }
    for (size_t i = 1; i < batch.offsets.size(); ++i) offsets.push_back(before + batch.offsets[i]);
  }
  using psctl::TensorType;
  tensors->Add(name + "/labels", TensorType::kFloat32, {size}, labels);
  tensors->Add(name + "/numeric", TensorType::kFloat32, {size, numeric_count}, numeric);
  tensors->Add(name + "/offsets", TensorType::kInt64, {size + 1}, offsets);
  tensors->Add(name + "/rows", TensorType::kInt64, {rows.size()}, rows);
  if (!values.empty()) tensors->Add(name + "/values", TensorType::kFloat32, {values.size()}, values);
}

// Adds the table's initial values, and returns what model.json says of it.
absl::StatusOr<Json> AddTable(const v1::Config& config, const v1::TableSpec& spec, const std::vector<Key>& keys,
                              Tensors* tensors) {
  LODESTONE_ASSIGN_OR_RETURN(const auto table,
                             server::Table::Create(spec, config.cluster().seed(), config.cluster().shards()));
  Json json;
  json["name"] = spec.name();
  json["dense"] = table->is_dense();
  std::string optimizer;
  const auto printed = google::protobuf::util::MessageToJsonString(spec.optimizer(), &optimizer);
  if (!printed.ok()) return absl::InternalError(std::string(printed.message()));
  json["optimizer"] = Json::parse(optimizer);
  std::vector<float> values;
  std::vector<uint64_t> shape;
  if (table->is_dense()) {
    shape.assign(spec.dense().dims().begin(), spec.dense().dims().end());
    values.resize(table->layout().elements);
    table->InitializeDense(0, values.size(), values.data());
  } else {
    shape = {keys.size(), table->dim()};
    values.resize(keys.size() * table->dim());
    for (size_t i = 0; i < keys.size(); ++i) table->InitializeRow(keys[i], values.data() + i * table->dim());
  }
  tensors->Add("start/" + spec.name(), psctl::TensorType::kFloat32, shape, values);
  return json;
}

Json LayersOf(const std::vector<worker::DenseLayer>& layers) {
  Json json = Json::array();
  for (const worker::DenseLayer& layer : layers) {
    json.push_back({{"in", layer.in}, {"out", layer.out}, {"activation", static_cast<int>(layer.activation)}});
  }
  return json;
}

absl::Status Write(const v1::Config& config, const std::string& folder) {
  LODESTONE_ASSIGN_OR_RETURN(const worker::LoadedData data,
                             worker::LoadData(config, worker::LabelsOf(config.model()), worker::Partition{},
                                              /*with_test=*/true, nullptr));
  LODESTONE_ASSIGN_OR_RETURN(const worker::ModelPlan plan, worker::PlanModel(config, data.schema));
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<v1::TableSpec> specs, worker::TablesOf(plan, config));
  if (data.test == nullptr) return absl::InvalidArgumentError("the configuration has no test set");
  Tensors tensors;
  KeyRows keys;
  AddSet("train", *data.train, data.schema.numeric_count, &keys, &tensors);
  AddSet("test", *data.test, data.schema.numeric_count, &keys, &tensors);
  tensors.Add("prior", psctl::TensorType::kFloat32, {plan.prior.size()}, plan.prior);
  Json json;
  json["type"] = absl::AsciiStrToLower(v1::ModelConfig::Type_Name(plan.type));
  json["loss"] = absl::AsciiStrToLower(v1::ModelConfig::Loss_Name(plan.loss));
  json["outputs"] = plan.outputs;
  json["fields"] = plan.field_count;
  json["linear_rows"] = plan.linear_rows;
  json["linear_numeric"] = plan.linear_numeric;
  json["pairs"] = plan.pairs;
  json["linear_columns"] = plan.linear_columns;
  json["embedding_dim"] = plan.embedding_dim;
  json["mlp"] = LayersOf(plan.mlp);
  json["bottom"] = LayersOf(plan.bottom);
  json["l2"] = plan.l2;
  json["dropout"] = plan.dropout;
  json["epochs"] = config.train().epochs();
  json["batch_size"] = config.train().batch_size();
  for (const v1::TableSpec& spec : specs) {
    LODESTONE_ASSIGN_OR_RETURN(json["tables"].emplace_back(), AddTable(config, spec, keys.keys(), &tensors));
  }
  std::ofstream file(folder + "/model.json");
  file << json.dump(1) << "\n";
  file.close();
  if (!file) return absl::UnavailableError(absl::StrCat(folder, "/model.json cannot be written"));
  return tensors.Write(folder + "/data.npz");
}

int Main(int argc, char** argv) {
  std::string folder;
  OptionsSpec spec;
  spec.program = "quality_data";
  spec.description = "Writes what a configuration trains on and starts from, for another program.";
  spec.examples = "quality_data --config configs/optdigits.yaml --out folder";
  spec.flags = {{"--out", "FOLDER", "Where data.npz and model.json are written.", &folder}};
  ProcessOptions options;
  if (const std::optional<int> exit_code = ParseOptions(argc, argv, spec, &options)) return *exit_code;
  const absl::Status status = Write(options.config, folder.empty() ? "." : folder);
  if (status.ok()) return 0;
  std::cerr << "quality_data: " << status.message() << "\n";
  return 1;
}

}  // namespace
}  // namespace lodestone::bench

int main(int argc, char** argv) { return lodestone::bench::Main(argc, argv); }
