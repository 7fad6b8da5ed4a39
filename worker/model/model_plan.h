// The plan of a configured model for given data: its terms and their sizes, its loss, and the tables that hold its
// parameters. A model type is a function that checks the data and adds its tables and terms: one source each
// (linear.h, fm.h, deepfm.h, dlrm.h, mlp_model.h, widedeep.h, dcn.h, two_towers.h, multitask.h), which PlanModel
// chooses from.
//
// Thread safety: pure functions and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "kernels/activation_function.h"
#include "kernels/backend.h"
#include "proto/config.pb.h"
#include "proto/table.pb.h"
#include "worker/data/dataset.h"
#include "worker/model/term.h"

namespace lodestone::worker {

struct ModelPlan;

// A fully connected layer.
struct DenseLayer {
  size_t in = 0;
  size_t out = 0;
  // activation(x W + b), or without one x W alone: the model's own bias is the last layer's.
  kernels::Activation activation = kernels::Activation::kNone;
  // With an activation: x W is normalised before the bias is added (kernels/layer_norm.h).
  bool normalized = false;

  bool has_bias() const { return activation != kernels::Activation::kNone; }
};

// A table of a model, as its type wants it; the configuration adds optimizer, broadcast and the like (TablesOf).
struct PlannedTable {
  // Whose settings it takes: model.dense, model.linear or model.embedding.
  enum class Group { kDense, kLinear, kEmbedding };

  std::string name;
  Group group = Group::kDense;
  std::vector<uint64_t> dims;  // Of a dense table: its extents.
  uint32_t dim = 0;            // Of an embedding table: floats per row.
  v1::Initializer start;       // Unless the group's settings have an initializer.
  uint32_t zero_columns = 0;   // Of an embedding table's rows: Initializer.zero_columns.
  size_t field_group = 0;      // Whose keys have rows: ModelPlan::groups.
};

// Columns of a table's rows, of which there is one for each of a batch's distinct keys.
struct TableColumns {
  size_t table = 0;      // An index of ParameterPointers.
  size_t first = 0;      // Column.
  size_t row_width = 0;  // Columns of the table.

  kernels::RowColumns Of(const ParameterPointers& parameters) const { return At(parameters[table]); }
  kernels::GradientColumns Of(const GradientPointers& gradients) const { return At(gradients[table]); }

 private:
  // A batch without keys may have no memory for rows.
  template <typename Element>
  kernels::ColumnsOf<Element> At(Element* rows) const {
    return {rows == nullptr ? nullptr : rows + first, row_width};
  }
};

// Makes a term of a plan, for a backend, which must outlive it.
using TermMaker = std::function<std::unique_ptr<Term>(const ModelPlan& plan, kernels::Backend* backend)>;

// Consecutive columns of the vector of all features.
struct ColumnRun {
  size_t from = 0;
  size_t columns = 0;
};

// A tower: its columns, and its layers.
struct TowerPlan {
  std::vector<ColumnRun> runs;
  size_t width = 0;
  std::vector<DenseLayer> layers;
};

struct TwoTowerPlan {
  TowerPlan user;
  TowerPlan item;
  uint32_t dim = 0;
  float temperature = 1;
  bool normalizes = false;
};

struct MultitaskPlan {
  std::vector<std::string> labels;
  size_t experts = 0;               // 0: there is one shared bottom.
  std::vector<DenseLayer> shared;   // Of the bottom, or of each expert.
  std::vector<DenseLayer> tower;    // Of each label.
  std::vector<float> loss_weights;  // By label.
};

struct ModelPlan {
  v1::ModelConfig::Type type = v1::ModelConfig::LINEAR;
  v1::ModelConfig::Loss loss = v1::ModelConfig::LOGISTIC;  // Never AUTO.
  uint32_t outputs = 1;                                    // Classes (softmax), labels (multitask), or 1.
  uint32_t numeric_count = 0;
  uint32_t field_count = 0;
  std::vector<v1::MultiColumn::Pooling> pooling;  // Schema's.

  // Fields by the width of their vectors: those of model.embedding_dim first, then by ascending width. A group of
  // another width than model.embedding_dim has tables of its own, "embedding/WIDTH" and "linear/WIDTH".
  FieldGroups groups;
  std::vector<uint32_t> group_dims;  // By group.
  uint32_t default_dim = 0;          // model.embedding_dim.

  std::vector<TermMaker> terms;  // In the order in which they are added up.
  std::vector<PlannedTable> dense_tables;
  std::vector<PlannedTable> row_tables;

  // What some types have; others leave them as they are.
  bool linear_rows = false;        // Table "linear" [key -> outputs], or
  uint32_t linear_columns = 0;     // if not 0 the first `outputs` columns of table "embedding"; of each field group.
  bool linear_numeric = false;     // Table "numeric" [numeric_count, outputs].
  bool pairs = false;              // The second-order term over table "embedding",
  bool numeric_pairs = false;      // and over table "numeric_embedding" [numeric_count, embedding_dim].
  uint32_t embedding_dim = 0;      // Width of the vectors in table "embedding"; 0: there are no such tables.
  std::vector<DenseLayer> mlp;     // Tables "mlp/0/weight", "mlp/0/bias", ...; empty: no such term.
  std::vector<DenseLayer> bottom;  // Tables "bottom/0/weight", ... (dlrm).
  std::optional<TwoTowerPlan> two_tower;
  std::optional<MultitaskPlan> multitask;

  float bias = 0;  // Where table "bias" [outputs] starts.
  // What the model's outputs are numbers of: label_mean + label_deviation * output (squared); 0: the outputs are.
  double label_mean = 0;
  double label_deviation = 0;
  // [outputs]: a constant beside the bias, the classes' log shares (softmax) or the labels' log odds (multitask); or
  // empty.
  std::vector<float> prior;
  float l2 = 0;
  v1::ModelConfig::L2Per l2_per = v1::ModelConfig::BATCH;
  float dropout = 0;

  // For the types' sources.
  void AddDense(const std::string& name, std::vector<uint64_t> dims, const v1::Initializer& start);
  // Tables "prefix/0/weight" and "prefix/0/bias" of each layer: He's initial weights before an activation, Xavier's in
  // a layer without one.
  void AddLayers(const std::string& prefix, const std::vector<DenseLayer>& layers);
  // A table of each field group, with that group's suffix: [key -> dim], or, with dim 0, [key -> the group's width].
  void AddRows(const std::string& name, PlannedTable::Group group, uint32_t dim, const v1::Initializer& start);
  // Table "embedding" of each field group, once. `dim` is model.embedding_dim.
  void AddEmbedding(uint32_t dim);

  // Where a table stands among the model's (TablesOf): an index of ParameterPointers. REQUIRES: there is such a table.
  size_t TableIndex(const std::string& name) const;
  // Where the linear weights of a group's keys lie, and where their vectors do. REQUIRES: there are such.
  TableColumns LinearColumns(size_t group = 0) const;
  TableColumns EmbeddingColumns(size_t group = 0) const;

  // Whether a field's vector has another width than model.embedding_dim.
  bool has_field_dims() const { return groups.count() > 1 || group_dims[0] != default_dim; }
  // The vector of all features: the fields' vectors, group after group, then the numbers (features.h).
  size_t FieldsIn(size_t group) const { return groups.count() == 1 ? field_count : groups.fields[group].size(); }
  size_t FeatureWidth() const;
  // Where a field's vector lies in it.
  ColumnRun FieldColumns(uint32_t field) const;

 private:
  // Of the names of a group's tables.
  std::string SuffixOf(size_t group) const;
};

// Whether the labels of the model that `config` describes are classes or numbers, or several.
LabelKind LabelsOf(const v1::ModelConfig& config);

// INVALID_ARGUMENT, saying what to change, if the model makes no sense on such data, or is not the one that
// schema.continued (whose prior stays) is.
absl::StatusOr<ModelPlan> PlanModel(const v1::Config& config, const Schema& schema);

// For the types' sources.

// Initial values.
v1::Initializer Zeros();
v1::Initializer Xavier();
// Those of embeddings: normal, small beside what training makes of them, so that rows which training never sees add
// little noise, and not zero, where the gradients of products vanish.
v1::Initializer SmallNormal();

// Layers of so many outputs each, with the configured activation.
std::vector<DenseLayer> HiddenLayers(size_t in, const google::protobuf::RepeatedField<uint32_t>& widths,
                                     const v1::ModelConfig& model);
// model.hidden's layers, and a last one without bias and activation.
std::vector<DenseLayer> MlpLayers(size_t in, const v1::ModelConfig& model, size_t out);

// "categorical fields" or whatever the data consists of, for messages.
std::string ContentOf(const Schema& schema);
// INVALID_ARGUMENT: "model.type: TYPE" and the rest.
absl::Status DoesNotFit(const v1::ModelConfig& model, const std::string& why);
// INVALID_ARGUMENT of samples with any number of features: the model takes fields and numbers.
absl::Status CheckFieldsOrNumbers(const v1::ModelConfig& model, const Schema& schema);
// INVALID_ARGUMENT if there are several classes: the model has one score.
absl::Status CheckOneOutput(const v1::ModelConfig& model, const ModelPlan& plan);

}  // namespace lodestone::worker
