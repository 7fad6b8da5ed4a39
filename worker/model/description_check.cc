#include "worker/model/description_check.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "worker/data/date_time.h"
#include "worker/data/multi.h"
#include "worker/data/transform.h"
#include "worker/model/model_description.h"
#include "worker/model/model_plan.h"
#include "worker/model/multitask.h"
#include "worker/model/two_towers.h"

namespace lodestone::worker {
namespace {

using v1::ModelConfig;

absl::Status BadDescription(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("the description of the model is damaged: ", what));
}

absl::Status CheckColumns(const v1::DataDescription& data) {
  for (const auto& column : data.numeric()) {
    if (!TransformNamed(column.transform()).has_value() || !(column.deviation() > 0)) {
      return BadDescription(absl::StrCat("the transform of column \"", column.name(), "\""));
    }
  }
  const auto bad_time = [](const auto& column) {
    const TimeRule rule = TimeRuleOf(column.time());
    const bool good = rule.is_set() && (rule.part != TimeRule::Part::kAgeDays || IsTime(rule.age_at));
    return column.has_time() && !good;
  };
  for (const auto& column : data.numeric()) {
    if (bad_time(column)) return BadDescription(absl::StrCat("the time of column \"", column.name(), "\""));
  }
  for (const auto& column : data.categorical()) {
    if (bad_time(column)) return BadDescription(absl::StrCat("the time of column \"", column.name(), "\""));
    v1::CsvConfig::Bucket bucket;
    if (!column.bucket().empty() && !v1::CsvConfig::Bucket_Parse(absl::AsciiStrToUpper(column.bucket()), &bucket)) {
      return BadDescription(absl::StrCat("the bucket of column \"", column.name(), "\""));
    }
    if (column.pooling().empty()) continue;
    if (!PoolingNamed(column.pooling()).has_value() || column.separator().empty() || column.values_max() == 0) {
      return BadDescription(absl::StrCat("the pooling of column \"", column.name(), "\""));
    }
  }
  if (!(data.label_deviation() >= 0)) return BadDescription("the deviation of the labels");
  if (data.sparse() && !TransformNamed(data.sparse_transform()).has_value()) {
    return BadDescription(absl::StrCat("there is no transform ", data.sparse_transform()));
  }
  return absl::OkStatus();
}

absl::Status CheckTwoTower(const v1::ModelDescription& description) {
  const v1::ModelDescription::TwoTower& towers = description.two_tower();
  if (towers.dim() == 0 || !(towers.temperature() > 0)) return BadDescription("the towers' dim and temperature");
  const absl::StatusOr<TwoTowerColumns> columns = FindTowers(
      ConfigOf(description).model().two_tower(), SchemaOf(std::make_shared<v1::ModelDescription>(description)));
  return columns.ok() ? absl::OkStatus() : BadDescription(std::string(columns.status().message()));
}

absl::Status CheckFieldDims(const v1::ModelDescription& description) {
  const auto& dims = description.field_dims();
  if (dims.empty()) return absl::OkStatus();
  const int fields = description.data().categorical_size();
  const bool good =
      dims.size() == fields && std::all_of(dims.begin(), dims.end(), [](uint32_t dim) { return dim > 0; });
  return good ? absl::OkStatus()
              : BadDescription(
                    absl::StrCat("widths of the vectors of ", fields, " fields: ", absl::StrJoin(dims, ", ")));
}

absl::Status CheckCross(const v1::ModelDescription::Cross& cross) {
  v1::CrossConfig::Structure structure;
  if (!v1::CrossConfig::Structure_Parse(absl::AsciiStrToUpper(cross.structure()), &structure)) {
    return BadDescription(absl::StrCat("there is no cross network ", cross.structure()));
  }
  return cross.layers() > 0 ? absl::OkStatus() : BadDescription("the cross network has no layers");
}

absl::Status CheckMultitask(const v1::ModelDescription& description) {
  const v1::ModelDescription::Multitask& multitask = description.multitask();
  v1::MultitaskConfig::Structure structure;
  if (!v1::MultitaskConfig::Structure_Parse(absl::AsciiStrToUpper(multitask.structure()), &structure)) {
    return BadDescription(absl::StrCat("there is no multitask structure ", multitask.structure()));
  }
  if ((structure == v1::MultitaskConfig::MMOE) != (multitask.experts() > 0)) {
    return BadDescription(absl::StrCat(multitask.experts(), " experts of ", multitask.structure()));
  }
  if (multitask.experts() > kExpertsMax) {
    return BadDescription(absl::StrCat(multitask.experts(), " experts, and there are ", kExpertsMax, " at most"));
  }
  const int labels = description.data().labels_size();
  if (labels > static_cast<int>(limits::kLabelsMax)) {
    return BadDescription(absl::StrCat(labels, " labels, and there are ", limits::kLabelsMax, " at most"));
  }
  if (labels < 2 || labels != static_cast<int>(description.outputs()) || labels != multitask.loss_weights_size()) {
    return BadDescription(absl::StrCat(labels, " labels, ", description.outputs(), " outputs and ",
                                       multitask.loss_weights_size(), " weights of losses"));
  }
  return description.hidden().empty() ? BadDescription("it has no hidden layers") : absl::OkStatus();
}

absl::Status Differs(const std::string& option, const std::string& was, const std::string& is) {
  return absl::FailedPreconditionError(
      absl::StrCat("the cluster holds a model of ", option, ": ", was, ", and the configuration says ", is, "; set ",
                   option, ": ", was, " to go on training it, or start the servers with another server.data_dir"));
}

template <typename Items>
std::string ListText(const Items& items) {
  return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
}

// As YAML has them: those that are not embedding_dim.
std::string DimsText(const ModelConfig& model) {
  std::map<std::string, uint32_t> dims(model.embedding_dims().begin(), model.embedding_dims().end());
  std::erase_if(dims, [&](const auto& item) { return item.second == model.embedding_dim(); });
  return absl::StrCat("{", absl::StrJoin(dims, ", ", absl::PairFormatter(": ")), "}");
}

absl::Status CheckContinues(const v1::ModelDescription::Multitask& known, const v1::MultitaskConfig& config) {
  if (known.structure() != StructureName(config)) {
    return Differs("model.multitask.structure", known.structure(), StructureName(config));
  }
  if (known.experts() > 0 && known.experts() != config.experts()) {
    return Differs("model.multitask.experts", absl::StrCat(known.experts()), absl::StrCat(config.experts()));
  }
  const std::string was = ListText(known.tower_hidden()), is = ListText(config.tower_hidden());
  return was == is ? absl::OkStatus() : Differs("model.multitask.tower_hidden", was, is);
}

}  // namespace

absl::Status CheckDescription(const v1::ModelDescription& description) {
  if (description.format() == 0 || description.format() > kModelFormat) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model's description is of format ", description.format(), ", written by version ",
                     description.program(), "; this program reads formats up to ", kModelFormat, ": use one as new"));
  }
  ModelConfig::Type type;
  ModelConfig::Loss loss;
  ModelConfig::Activation activation;
  if (!ModelConfig::Type_Parse(absl::AsciiStrToUpper(description.type()), &type)) {
    return BadDescription(absl::StrCat("there is no type ", description.type()));
  }
  if (!ModelConfig::Loss_Parse(absl::AsciiStrToUpper(description.loss()), &loss) || loss == ModelConfig::AUTO) {
    return BadDescription(absl::StrCat("there is no loss ", description.loss()));
  }
  if (!ModelConfig::Activation_Parse(absl::AsciiStrToUpper(description.activation()), &activation)) {
    return BadDescription(absl::StrCat("there is no activation ", description.activation()));
  }
  if (type == ModelConfig::DCN) LODESTONE_RETURN_IF_ERROR(CheckCross(description.cross()));
  if ((type == ModelConfig::TWOTOWER) != (loss == ModelConfig::IN_BATCH_SOFTMAX)) {
    return BadDescription(absl::StrCat("the loss ", description.loss(), " of a model of type ", description.type()));
  }
  if ((type == ModelConfig::MULTITASK) != (description.data().labels_size() > 0)) {
    return BadDescription(
        absl::StrCat(description.data().labels_size(), " labels beside one, of a model of type ", description.type()));
  }
  if (type == ModelConfig::MULTITASK) LODESTONE_RETURN_IF_ERROR(CheckMultitask(description));
  LODESTONE_RETURN_IF_ERROR(CheckColumns(description.data()));
  LODESTONE_RETURN_IF_ERROR(CheckFieldDims(description));
  if (type == ModelConfig::TWOTOWER) LODESTONE_RETURN_IF_ERROR(CheckTwoTower(description));
  if (description.linear_columns() > 0 &&
      (description.linear_columns() != description.outputs() || description.embedding_dim() == 0)) {
    return BadDescription(absl::StrCat(description.linear_columns(), " linear weights of ", description.outputs(),
                                       " outputs in rows with ", description.embedding_dim(), " embeddings"));
  }
  if (description.prior_size() > 0 && description.prior_size() != static_cast<int>(description.outputs())) {
    return BadDescription(absl::StrCat(description.prior_size(), " priors for ", description.outputs(), " outputs"));
  }
  return absl::OkStatus();
}

absl::Status CheckContinues(const v1::ModelDescription& known, ModelConfig::Type type, ModelConfig::Loss loss) {
  const std::string type_name = absl::AsciiStrToLower(ModelConfig::Type_Name(type));
  const std::string loss_name = absl::AsciiStrToLower(ModelConfig::Loss_Name(loss));
  if (known.type() != type_name) return Differs("model.type", known.type(), type_name);
  if (known.loss() != loss_name) return Differs("model.loss", known.loss(), loss_name);
  return absl::OkStatus();
}

absl::Status CheckContinues(const v1::ModelDescription& known, const ModelConfig& model, const ModelPlan& plan) {
  if (known.embedding_dim() > 0 && plan.embedding_dim > 0 && known.embedding_dim() != plan.embedding_dim) {
    return Differs("model.embedding_dim", absl::StrCat(known.embedding_dim()), absl::StrCat(plan.embedding_dim));
  }
  const std::string dims = DimsText(ConfigOf(known).model()), wanted = DimsText(model);
  if (dims != wanted) return Differs("model.embedding_dims", dims, wanted);
  const auto check_list = [](const char* option, const auto& before, const auto& now) {
    const std::string was = ListText(before), is = ListText(now);
    return was == is ? absl::OkStatus() : Differs(option, was, is);
  };
  if (!plan.mlp.empty() || plan.two_tower.has_value() || plan.multitask.has_value()) {
    LODESTONE_RETURN_IF_ERROR(check_list("model.hidden", known.hidden(), model.hidden()));
  }
  if (!plan.bottom.empty()) {
    LODESTONE_RETURN_IF_ERROR(check_list("model.bottom_hidden", known.bottom_hidden(), model.bottom_hidden()));
  }
  const std::string activation = absl::AsciiStrToLower(ModelConfig::Activation_Name(model.activation()));
  const bool hidden = known.hidden_size() + known.bottom_hidden_size() > 0;
  if (hidden && known.activation() != activation) {
    return Differs("model.activation", known.activation(), activation);
  }
  if (hidden && known.layer_norm() != model.layer_norm()) {
    return Differs("model.layer_norm", known.layer_norm() ? "true" : "false", model.layer_norm() ? "true" : "false");
  }
  if (known.has_two_tower()) {
    const v1::ModelDescription::TwoTower& was = known.two_tower();
    const v1::TwoTowerConfig& is = model.two_tower();
    LODESTONE_RETURN_IF_ERROR(check_list("model.two_tower.user", was.user(), is.user()));
    LODESTONE_RETURN_IF_ERROR(check_list("model.two_tower.item", was.item(), is.item()));
    if (was.temperature() != is.temperature()) {
      return Differs("model.two_tower.temperature", absl::StrCat(was.temperature()), absl::StrCat(is.temperature()));
    }
    if (was.normalize() != is.normalize()) {
      return Differs("model.two_tower.normalize", was.normalize() ? "true" : "false",
                     is.normalize() ? "true" : "false");
    }
  }
  if (known.has_multitask()) LODESTONE_RETURN_IF_ERROR(CheckContinues(known.multitask(), model.multitask()));
  if (!known.has_cross()) return absl::OkStatus();
  if (known.cross().layers() != model.cross().layers()) {
    return Differs("model.cross.layers", absl::StrCat(known.cross().layers()), absl::StrCat(model.cross().layers()));
  }
  if (known.cross().rank() != model.cross().rank()) {
    return Differs("model.cross.rank", absl::StrCat(known.cross().rank()), absl::StrCat(model.cross().rank()));
  }
  const std::string structure = StructureName(model.cross());
  if (known.cross().structure() != structure) {
    return Differs("model.cross.structure", known.cross().structure(), structure);
  }
  return absl::OkStatus();
}

absl::Status CheckContinues(const v1::ModelDescription& known, const v1::DataConfig& data) {
  const bool was = known.data().label_deviation() > 0, is = data.standardize_label();
  return was == is ? absl::OkStatus()
                   : Differs("data.standardize_label", was ? "true" : "false", is ? "true" : "false");
}

}  // namespace lodestone::worker
