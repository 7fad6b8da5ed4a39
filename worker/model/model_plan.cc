#include "worker/model/model_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "worker/model/model_description.h"

namespace lodestone::worker {
namespace {

using v1::ModelConfig;

// Standard deviation of the first embeddings: small beside what training makes of them, so that rows which training
// never sees add little noise, and not zero, where the gradients of products vanish.
constexpr float kEmbeddingStddev = 0.01f;
// Of the default optimizer, Adagrad.
constexpr float kLearningRate = 0.05f;
// Of the default broadcast of dense tables; by count it comes after about one step of every worker.
constexpr uint32_t kBroadcastEveryMs = 100;

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

std::string TypeName(ModelConfig::Type type) { return absl::AsciiStrToLower(ModelConfig::Type_Name(type)); }

absl::Status PlanLoss(const ModelConfig& config, const Schema& schema, ModelPlan* plan) {
  const size_t classes = schema.class_names.size();
  plan->loss = config.loss();
  if (plan->loss == ModelConfig::AUTO) {
    plan->loss = LabelsOf(config) == LabelKind::kNumber ? ModelConfig::SQUARED
                 : classes > 2                          ? ModelConfig::SOFTMAX
                                                        : ModelConfig::LOGISTIC;
  }
  if (plan->loss == ModelConfig::SQUARED) return absl::OkStatus();
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

// What the type asks of the data.
absl::Status CheckData(const ModelConfig& config, const Schema& schema, uint32_t outputs) {
  const std::string model = absl::StrCat("model.type: ", TypeName(config.type()));
  const bool numeric = schema.numeric_count > 0;
  const bool fields = schema.field_count > 0;
  const char* const kSparse = "samples with any number of key:value features, as libsvm files have";
  if (!numeric && !fields && !schema.sparse) return Invalid("the data has no features");
  if (outputs > 1 &&
      (config.type() == ModelConfig::FM || config.type() == ModelConfig::MF || config.type() == ModelConfig::DEEPFM)) {
    return Invalid(model, " gives one score and cannot tell ", outputs,
                   " classes apart; use linear, mlp or dlrm, or merge classes with data.label_map");
  }
  switch (config.type()) {
    case ModelConfig::LINEAR:
      return absl::OkStatus();
    case ModelConfig::FM:
      if (schema.sparse || fields) return absl::OkStatus();
      return Invalid(model, " needs categorical or sparse features, the data has numeric ones only; use linear or mlp");
    case ModelConfig::MF:
      if (schema.field_count == 2 && !numeric) return absl::OkStatus();
      return Invalid(model, " needs exactly two categorical fields (user and item) and nothing else, the data has ",
                     schema.sparse
                         ? std::string(kSparse)
                         : absl::StrCat(schema.field_count, " categorical and ", schema.numeric_count, " numeric ones"),
                     "; name two columns in data.csv.categorical, or use fm");
    case ModelConfig::DEEPFM:
      if (fields) return absl::OkStatus();
      return Invalid(model, " needs categorical fields, the data has ",
                     schema.sparse ? kSparse : "numeric features only",
                     schema.sparse ? "; use fm" : "; name categorical columns, or use mlp");
    case ModelConfig::DLRM:
      if (fields && numeric) return absl::OkStatus();
      return Invalid(model, " needs categorical fields and numeric features, the data has ",
                     schema.sparse
                         ? std::string(kSparse)
                         : absl::StrCat(schema.field_count, " categorical and ", schema.numeric_count, " numeric ones"),
                     schema.sparse ? "; use fm"
                     : fields      ? "; use deepfm"
                                   : "; use mlp");
    case ModelConfig::MLP:
      if (numeric && !fields && !schema.sparse) return absl::OkStatus();
      return Invalid(
          model, " takes numeric features only, the data has ",
          schema.sparse ? std::string(kSparse) : absl::StrCat(schema.field_count, " categorical fields"),
          schema.sparse ? "; use linear or fm" : "; use deepfm or dlrm, or list the fields in data.csv.ignore");
  }
  return Invalid(model, " is unknown");
}

// Where the bias starts, so that the model begins with the training labels' mean as its prediction.
void PlanBias(const Schema& schema, ModelPlan* plan) {
  if (plan->loss == ModelConfig::SQUARED) {
    plan->bias = static_cast<float>(schema.label_mean);
    return;
  }
  // One half is added to every count, so that a class without samples stays finite.
  std::vector<double> counts(schema.class_names.size(), 0.5);
  double total = 0;
  for (size_t c = 0; c < counts.size(); ++c) {
    if (c < schema.class_counts.size()) counts[c] += static_cast<double>(schema.class_counts[c]);
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

std::vector<DenseLayer> HiddenLayers(size_t in, const google::protobuf::RepeatedField<uint32_t>& widths,
                                     kernels::Activation activation) {
  std::vector<DenseLayer> layers;
  for (uint32_t width : widths) {
    layers.push_back({in, width, activation});
    in = width;
  }
  return layers;
}

std::vector<DenseLayer> MlpLayers(size_t in, const ModelConfig& model, size_t out) {
  std::vector<DenseLayer> layers = HiddenLayers(in, model.hidden(), ActivationOf(model));
  layers.push_back({layers.empty() ? in : layers.back().out, out, kernels::Activation::kNone});
  return layers;
}

// The optimizer of a group of tables.
v1::Optimizer OptimizerOf(const ModelConfig& model, const v1::TableConfig& group) {
  if (group.has_optimizer()) return group.optimizer();
  if (model.has_optimizer()) return model.optimizer();
  v1::Optimizer optimizer;
  optimizer.mutable_adagrad();
  optimizer.set_learning_rate(kLearningRate);
  return optimizer;
}

class TableWriter {
 public:
  TableWriter(const v1::Config& config, std::vector<v1::TableSpec>* specs) : config_(config), specs_(specs) {}

  v1::Initializer* Dense(const std::string& name, std::initializer_list<uint64_t> dims) {
    const v1::TableConfig& group = config_.model().dense();
    v1::TableSpec* spec = Add(name, group);
    for (uint64_t dim : dims) spec->mutable_dense()->add_dims(dim);
    if (!group.has_broadcast()) {
      spec->mutable_broadcast()->set_every_ms(kBroadcastEveryMs);
      spec->mutable_broadcast()->set_every_pushes(std::max<uint32_t>(1, config_.cluster().workers()));
    }
    return spec->mutable_initializer();
  }

  v1::Initializer* Rows(const std::string& name, uint32_t dim, const v1::TableConfig& group) {
    v1::TableSpec* spec = Add(name, group);
    spec->mutable_embedding()->set_dim(dim);
    if (group.has_admission()) *spec->mutable_embedding()->mutable_admission() = group.admission();
    if (group.has_eviction()) *spec->mutable_embedding()->mutable_eviction() = group.eviction();
    return spec->mutable_initializer();
  }

  void Layers(const std::string& prefix, const std::vector<DenseLayer>& layers) {
    const bool configured = config_.model().dense().has_initializer();
    for (size_t i = 0; i < layers.size(); ++i) {
      const DenseLayer& layer = layers[i];
      v1::Initializer* weight = Dense(absl::StrCat(prefix, "/", i, "/weight"), {layer.in, layer.out});
      if (!configured && layer.has_bias()) weight->mutable_he();
      if (!configured && !layer.has_bias()) weight->mutable_xavier();
      if (!layer.has_bias()) continue;
      v1::Initializer* bias = Dense(absl::StrCat(prefix, "/", i, "/bias"), {layer.out});
      if (!configured) bias->mutable_zeros();
    }
  }

 private:
  v1::TableSpec* Add(const std::string& name, const v1::TableConfig& group) {
    v1::TableSpec* spec = &specs_->emplace_back();
    spec->set_name(name);
    *spec->mutable_optimizer() = OptimizerOf(config_.model(), group);
    if (group.has_initializer()) *spec->mutable_initializer() = group.initializer();
    if (group.has_broadcast()) *spec->mutable_broadcast() = group.broadcast();
    if (group.has_memory_max_bytes()) spec->set_memory_max_bytes(group.memory_max_bytes());
    if (group.has_guard()) *spec->mutable_guard() = group.guard();
    return spec;
  }

  const v1::Config& config_;
  std::vector<v1::TableSpec>* const specs_;
};

}  // namespace

LabelKind LabelsOf(const ModelConfig& config) {
  const bool number =
      config.loss() == ModelConfig::SQUARED || (config.loss() == ModelConfig::AUTO && config.type() == ModelConfig::MF);
  return number ? LabelKind::kNumber : LabelKind::kClass;
}

absl::StatusOr<ModelPlan> PlanModel(const v1::Config& config, const Schema& schema) {
  const ModelConfig& model = config.model();
  ModelPlan plan;
  plan.type = model.type();
  plan.numeric_count = schema.numeric_count;
  plan.field_count = schema.field_count;
  plan.l2 = model.l2();
  plan.dropout = model.dropout();
  LODESTONE_RETURN_IF_ERROR(PlanLoss(model, schema, &plan));
  LODESTONE_RETURN_IF_ERROR(CheckData(model, schema, plan.outputs));
  if (schema.continued != nullptr) {
    LODESTONE_RETURN_IF_ERROR(CheckContinues(*schema.continued, plan.type, plan.loss));
    plan.prior.assign(schema.continued->prior().begin(), schema.continued->prior().end());
  } else if (config.train().bias_from_labels()) {
    PlanBias(schema, &plan);
  }

  const uint32_t dim = model.embedding_dim();
  const bool dlrm = model.type() == ModelConfig::DLRM;
  const bool mlp_only = model.type() == ModelConfig::MLP;
  plan.linear_rows = (schema.sparse || schema.field_count > 0) && !dlrm;
  plan.linear_numeric = schema.numeric_count > 0 && !dlrm && !mlp_only;
  plan.pairs =
      model.type() == ModelConfig::FM || model.type() == ModelConfig::MF || model.type() == ModelConfig::DEEPFM;
  if (plan.pairs || dlrm) plan.embedding_dim = dim;
  if (model.type() == ModelConfig::DEEPFM) {
    const size_t in = size_t{schema.field_count} * dim + schema.numeric_count;
    plan.mlp = MlpLayers(in, model, plan.outputs);
  } else if (mlp_only) {
    plan.mlp = MlpLayers(schema.numeric_count, model, plan.outputs);
  } else if (dlrm) {
    google::protobuf::RepeatedField<uint32_t> widths = model.bottom_hidden();
    widths.Add(dim);
    plan.bottom = HiddenLayers(schema.numeric_count, widths, ActivationOf(model));
    plan.mlp = MlpLayers(dim + plan.interaction_pairs(), model, plan.outputs);
  }
  return plan;
}

absl::StatusOr<std::vector<v1::TableSpec>> TablesOf(const ModelPlan& plan, const v1::Config& config) {
  const ModelConfig& model = config.model();
  if (model.dense().has_admission() || model.dense().has_eviction()) {
    return Invalid(
        "model.dense: dense tables have neither admission nor eviction; set them in model.linear or "
        "model.embedding");
  }
  std::vector<v1::TableSpec> specs;
  TableWriter writer(config, &specs);
  v1::Initializer* bias = writer.Dense("bias", {plan.outputs});
  if (config.train().bias_from_labels()) {
    bias->mutable_constant()->set_value(plan.bias);
  } else if (!model.dense().has_initializer()) {
    bias->mutable_zeros();
  }
  if (plan.linear_numeric) {
    v1::Initializer* numeric = writer.Dense("numeric", {plan.numeric_count, plan.outputs});
    if (!model.dense().has_initializer()) numeric->mutable_zeros();
  }
  writer.Layers("mlp", plan.mlp);
  writer.Layers("bottom", plan.bottom);
  if (plan.linear_rows) {
    v1::Initializer* linear = writer.Rows("linear", plan.outputs, model.linear());
    if (!model.linear().has_initializer()) linear->mutable_zeros();
  }
  if (plan.embedding_dim > 0) {
    v1::Initializer* embedding = writer.Rows("embedding", plan.embedding_dim, model.embedding());
    if (!model.embedding().has_initializer()) embedding->mutable_normal()->set_stddev(kEmbeddingStddev);
  }
  return specs;
}

}  // namespace lodestone::worker
