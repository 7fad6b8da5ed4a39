#include "worker/model/model_plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "worker/model/bias.h"
#include "worker/model/dcn.h"
#include "worker/model/deepfm.h"
#include "worker/model/description_check.h"
#include "worker/model/dlrm.h"
#include "worker/model/fm.h"
#include "worker/model/linear.h"
#include "worker/model/mlp_model.h"
#include "worker/model/model_description.h"
#include "worker/model/multitask.h"
#include "worker/model/step_order.h"
#include "worker/model/two_towers.h"
#include "worker/model/widedeep.h"

namespace lodestone::worker {
namespace {

using v1::ModelConfig;

constexpr float kEmbeddingStddev = 0.01f;

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::Status PlanLabels(const ModelConfig& config, const Schema& schema, ModelPlan* plan) {
  if (config.loss() != ModelConfig::AUTO && config.loss() != ModelConfig::LOGISTIC) {
    return DoesNotFit(config, " has the logistic loss of each label; leave model.loss out");
  }
  if (schema.labels.size() < 2) {
    return DoesNotFit(config, " takes samples with several labels; name their columns in data.csv.labels");
  }
  plan->loss = ModelConfig::LOGISTIC;
  plan->outputs = static_cast<uint32_t>(schema.labels.size());
  return absl::OkStatus();
}

absl::Status PlanLoss(const ModelConfig& config, const Schema& schema, ModelPlan* plan) {
  if (config.type() == ModelConfig::MULTITASK) return PlanLabels(config, schema, plan);
  const size_t classes = schema.class_names.size();
  plan->loss = config.loss();
  const bool two_tower = config.type() == ModelConfig::TWOTOWER;
  if (plan->loss == ModelConfig::AUTO) {
    plan->loss = two_tower                                ? ModelConfig::IN_BATCH_SOFTMAX
                 : LabelsOf(config) == LabelKind::kNumber ? ModelConfig::SQUARED
                 : classes > 2                            ? ModelConfig::SOFTMAX
                                                          : ModelConfig::LOGISTIC;
  }
  if ((plan->loss == ModelConfig::IN_BATCH_SOFTMAX) != two_tower) {
    return two_tower ? DoesNotFit(config, " has the loss in_batch_softmax; leave model.loss out")
                     : DoesNotFit(config, " has no in_batch_softmax, which is twotower's loss; leave model.loss out");
  }
  if (two_tower || plan->loss == ModelConfig::SQUARED) return absl::OkStatus();
  if (classes < 2) {
    return Invalid("the training labels are all the same (", classes == 0 ? "none" : schema.class_names[0],
                   "): there is nothing to learn; for numbers set model.loss: squared");
  }
  if (classes > limits::kClassesMax) {
    return Invalid("the training labels have ", classes, " distinct values, more than the ", limits::kClassesMax,
                   " classes that softmax takes; for numbers set model.loss: squared");
  }
  if (plan->loss == ModelConfig::LOGISTIC && classes > 2) {
    return Invalid("model.loss: logistic takes two classes, the training labels have ", classes, " (",
                   schema.class_names[0], ", ", schema.class_names[1], ", ", schema.class_names[2],
                   classes > 3 ? ", ..." : "", "); use softmax, or merge classes with data.label_map");
  }
  if (plan->loss == ModelConfig::SOFTMAX) plan->outputs = static_cast<uint32_t>(classes);
  return absl::OkStatus();
}

// Whether a type takes vectors of different widths: it puts them one after another.
bool TakesWidths(ModelConfig::Type type) {
  return type == ModelConfig::MLP || type == ModelConfig::WIDEDEEP || type == ModelConfig::DCN ||
         type == ModelConfig::TWOTOWER || type == ModelConfig::MULTITASK;
}

absl::Status PlanGroups(const ModelConfig& model, const Schema& schema, ModelPlan* plan) {
  plan->default_dim = model.embedding_dim();
  plan->group_dims = {plan->default_dim};
  if (model.embedding_dims().empty()) return absl::OkStatus();
  if (!TakesWidths(model.type())) {
    return DoesNotFit(model,
                      " has no vectors of different lengths, since it multiplies them with one another or has none; "
                      "leave model.embedding_dims out, or use mlp, widedeep or dcn");
  }
  std::vector<std::string> names;
  for (const auto& column : schema.description.categorical()) names.push_back(column.name());
  for (const auto& [name, dim] : model.embedding_dims()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    return Invalid("model.embedding_dims: there is no categorical column \"", name, "\"; the data has ",
                   names.empty() ? "none" : absl::StrJoin(names, ", "));
  }
  const auto dim_of = [&](const std::string& name) {
    const auto found = model.embedding_dims().find(name);
    return found == model.embedding_dims().end() ? plan->default_dim : found->second;
  };
  std::map<std::pair<bool, uint32_t>, std::vector<uint32_t>> by_dim;  // Those of another width than the default last.
  for (uint32_t field = 0; field < names.size(); ++field) {
    const uint32_t dim = dim_of(names[field]);
    by_dim[{dim != plan->default_dim, dim}].push_back(field);
    const std::string& shared = schema.description.categorical(static_cast<int>(field)).vocabulary_of();
    if (shared.empty() || dim_of(shared) == dim) continue;
    return Invalid("model.embedding_dims: ", names[field], " has the categories of ", shared,
                   " (csv.vocabulary_of), and so vectors of one width; give both the same");
  }
  plan->group_dims.clear();
  for (const auto& [dim, fields] : by_dim) {
    plan->group_dims.push_back(dim.second);
    plan->groups.fields.push_back(fields);
  }
  return absl::OkStatus();
}

// Adds the type's tables and terms.
absl::Status PlanType(const v1::Config& whole, const Schema& schema, ModelPlan* plan) {
  const ModelConfig& config = whole.model();
  switch (config.type()) {
    case ModelConfig::LINEAR:
      return PlanLinear(config, schema, plan);
    case ModelConfig::FM:
      return PlanFm(config, schema, plan);
    case ModelConfig::MF:
      return PlanMf(config, schema, plan);
    case ModelConfig::DEEPFM:
      return PlanDeepFm(config, schema, plan);
    case ModelConfig::DLRM:
      return PlanDlrm(config, schema, plan);
    case ModelConfig::MLP:
      return PlanMlp(config, schema, plan);
    case ModelConfig::WIDEDEEP:
      return PlanWideDeep(config, schema, plan);
    case ModelConfig::DCN:
      return PlanDcn(config, schema, plan);
    case ModelConfig::TWOTOWER:
      return PlanTwoTower(whole, schema, plan);
    case ModelConfig::MULTITASK:
      return PlanMultitask(whole, schema, plan);
  }
  return DoesNotFit(config, " is unknown");
}

// Where the bias starts, so that the model begins with the training labels' mean as its prediction.
void PlanBias(const Schema& schema, ModelPlan* plan) {
  if (plan->loss == ModelConfig::IN_BATCH_SOFTMAX) return;
  if (plan->loss == ModelConfig::SQUARED) {
    if (plan->label_deviation == 0) plan->bias = static_cast<float>(schema.label_mean);
    return;
  }
  // One half is added to every count, so that a class without samples stays finite.
  if (plan->multitask.has_value()) {
    for (const LabelStatistics& label : schema.labels) {
      const double negative = label.weight - label.positive_weight;
      plan->prior.push_back(static_cast<float>(std::log((label.positive_weight + 0.5) / (negative + 0.5))));
    }
    return;
  }
  std::vector<double> counts(schema.class_names.size(), 0.5);
  double total = 0;
  for (size_t c = 0; c < counts.size(); ++c) {
    if (c < schema.class_weights.size()) {
      counts[c] += schema.class_weights[c];
    } else if (c < schema.class_counts.size()) {
      counts[c] += static_cast<double>(schema.class_counts[c]);
    }
    total += counts[c];
  }
  if (plan->loss == ModelConfig::LOGISTIC) {
    plan->bias = static_cast<float>(std::log(counts[1] / counts[0]));
    return;
  }
  for (double count : counts) plan->prior.push_back(static_cast<float>(std::log(count / total)));
}

// The two enums have the same numbers.
kernels::Activation ActivationOf(const ModelConfig& model) {
  static_assert(static_cast<int>(kernels::kLastActivation) == ModelConfig::Activation_MAX);
  return static_cast<kernels::Activation>(model.activation());
}

}  // namespace

v1::Initializer Zeros() {
  v1::Initializer initializer;
  initializer.mutable_zeros();
  return initializer;
}

v1::Initializer Xavier() {
  v1::Initializer initializer;
  initializer.mutable_xavier();
  return initializer;
}

v1::Initializer SmallNormal() {
  v1::Initializer initializer;
  initializer.mutable_normal()->set_stddev(kEmbeddingStddev);
  return initializer;
}

void ModelPlan::AddDense(const std::string& name, std::vector<uint64_t> dims, const v1::Initializer& start) {
  dense_tables.push_back({name, PlannedTable::Group::kDense, std::move(dims), 0, start, 0, 0});
}

void ModelPlan::AddLayers(const std::string& prefix, const std::vector<DenseLayer>& layers) {
  v1::Initializer he;
  he.mutable_he();
  for (size_t i = 0; i < layers.size(); ++i) {
    const DenseLayer& layer = layers[i];
    AddDense(absl::StrCat(prefix, "/", i, "/weight"), {layer.in, layer.out}, layer.has_bias() ? he : Xavier());
    if (layer.has_bias()) AddDense(absl::StrCat(prefix, "/", i, "/bias"), {layer.out}, Zeros());
  }
}

void ModelPlan::AddRows(const std::string& name, PlannedTable::Group group, uint32_t dim,
                        const v1::Initializer& start) {
  for (size_t g = 0; g < groups.count(); ++g) {
    row_tables.push_back({name + SuffixOf(g), group, {}, dim > 0 ? dim : group_dims[g], start, 0, g});
  }
}

void ModelPlan::AddEmbedding(uint32_t dim) {
  if (embedding_dim > 0) return;
  embedding_dim = dim;
  AddRows("embedding", PlannedTable::Group::kEmbedding, 0, SmallNormal());
}

size_t ModelPlan::TableIndex(const std::string& name) const {
  size_t index = 0;
  for (const auto* tables : {&dense_tables, &row_tables}) {
    for (const PlannedTable& table : *tables) {
      if (table.name == name) return index;
      ++index;
    }
  }
  LODESTONE_CHECK(false);
  return 0;
}

std::string ModelPlan::SuffixOf(size_t group) const {
  return group_dims[group] == default_dim ? std::string() : absl::StrCat("/", group_dims[group]);
}

TableColumns ModelPlan::LinearColumns(size_t group) const {
  if (linear_columns == 0) return {TableIndex("linear" + SuffixOf(group)), 0, outputs};
  return {TableIndex("embedding" + SuffixOf(group)), 0, linear_columns + group_dims[group]};
}

TableColumns ModelPlan::EmbeddingColumns(size_t group) const {
  return {TableIndex("embedding" + SuffixOf(group)), linear_columns, linear_columns + group_dims[group]};
}

size_t ModelPlan::FeatureWidth() const {
  size_t width = numeric_count;
  for (size_t g = 0; g < groups.count(); ++g) width += FieldsIn(g) * group_dims[g];
  return width;
}

ColumnRun ModelPlan::FieldColumns(uint32_t field) const {
  if (groups.count() == 1) return {size_t{field} * group_dims[0], group_dims[0]};
  size_t from = 0;
  for (size_t g = 0; g < groups.count(); ++g) {
    for (const uint32_t other : groups.fields[g]) {
      if (other == field) return {from, group_dims[g]};
      from += group_dims[g];
    }
  }
  LODESTONE_CHECK(false);
  return {};
}

LabelKind LabelsOf(const ModelConfig& config) {
  if (config.type() == ModelConfig::MULTITASK) return LabelKind::kSeveral;
  const bool number = config.type() == ModelConfig::TWOTOWER || config.loss() == ModelConfig::SQUARED ||
                      (config.loss() == ModelConfig::AUTO && config.type() == ModelConfig::MF);
  return number ? LabelKind::kNumber : LabelKind::kClass;
}

std::vector<DenseLayer> HiddenLayers(size_t in, const google::protobuf::RepeatedField<uint32_t>& widths,
                                     const ModelConfig& model) {
  std::vector<DenseLayer> layers;
  for (uint32_t width : widths) {
    layers.push_back({in, width, ActivationOf(model), model.layer_norm()});
    in = width;
  }
  return layers;
}

std::vector<DenseLayer> MlpLayers(size_t in, const ModelConfig& model, size_t out) {
  std::vector<DenseLayer> layers = HiddenLayers(in, model.hidden(), model);
  layers.push_back({layers.empty() ? in : layers.back().out, out, kernels::Activation::kNone});
  return layers;
}

std::string ContentOf(const Schema& schema) {
  if (schema.sparse) return "samples with any number of key:value features, as libsvm and libffm files have";
  return absl::StrCat(schema.field_count, " categorical and ", schema.numeric_count, " numeric ones");
}

absl::Status DoesNotFit(const ModelConfig& model, const std::string& why) {
  return Invalid("model.type: ", absl::AsciiStrToLower(ModelConfig::Type_Name(model.type())), why);
}

absl::Status CheckFieldsOrNumbers(const ModelConfig& model, const Schema& schema) {
  if (!schema.sparse) return absl::OkStatus();
  return DoesNotFit(model, absl::StrCat(" takes categorical fields and numeric features, the data has ",
                                        ContentOf(schema), "; use linear or fm"));
}

absl::Status CheckOneOutput(const ModelConfig& model, const ModelPlan& plan) {
  if (plan.outputs == 1) return absl::OkStatus();
  return DoesNotFit(model, absl::StrCat(" gives one score and cannot tell ", plan.outputs,
                                        " classes apart; use linear, mlp, widedeep, dcn or dlrm, merge classes with "
                                        "data.label_map, or set model.loss: squared if the labels are numbers"));
}

absl::StatusOr<ModelPlan> PlanModel(const v1::Config& config, const Schema& schema) {
  const ModelConfig& model = config.model();
  ModelPlan plan;
  plan.type = model.type();
  plan.numeric_count = schema.numeric_count;
  plan.field_count = schema.field_count;
  plan.pooling = schema.pooling;
  plan.l2 = model.l2();
  plan.l2_per = model.l2_per();
  plan.dropout = model.dropout();
  LODESTONE_RETURN_IF_ERROR(PlanLoss(model, schema, &plan));
  const v1::DataDescription* const known = schema.continued == nullptr ? nullptr : &schema.continued->data();
  plan.label_deviation = known != nullptr ? known->label_deviation() : schema.label_deviation;
  if (plan.label_deviation > 0) plan.label_mean = known != nullptr ? known->label_mean() : schema.label_mean;
  if (schema.numeric_count == 0 && schema.field_count == 0 && !schema.sparse) {
    return Invalid("the data has no features");
  }
  LODESTONE_RETURN_IF_ERROR(PlanGroups(model, schema, &plan));
  AddBias(&plan);
  LODESTONE_RETURN_IF_ERROR(PlanType(config, schema, &plan));
  LODESTONE_RETURN_IF_ERROR(JoinLinearRows(model, schema, &plan));
  for (const PlannedTable& table : plan.row_tables) {
    plan.groups.of_table.push_back(static_cast<uint32_t>(table.field_group));
  }
  if (plan.l2 > 0 && plan.row_tables.empty()) {
    return Invalid(
        "model.l2 is about rows of categories or sparse features, and this model has none; for its dense tables set "
        "weight_decay of model.dense.optimizer");
  }
  if (schema.continued != nullptr) {
    LODESTONE_RETURN_IF_ERROR(CheckContinues(*schema.continued, plan.type, plan.loss));
    LODESTONE_RETURN_IF_ERROR(CheckContinues(*schema.continued, model, plan));
    LODESTONE_RETURN_IF_ERROR(CheckContinues(*schema.continued, config.data()));
    plan.prior.assign(schema.continued->prior().begin(), schema.continued->prior().end());
  } else if (config.train().bias_from_labels()) {
    PlanBias(schema, &plan);
  }
  return plan;
}

}  // namespace lodestone::worker
