#include "worker/model/model_description.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "common/base/version.h"
#include "worker/data/date_time.h"
#include "worker/data/multi.h"
#include "worker/data/transform.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {
namespace {

using v1::ModelConfig;

std::string Lower(const std::string& name) { return absl::AsciiStrToLower(name); }

// Of a model without anything that format 1 lacks.
constexpr uint32_t kFirstFormat = 1;
// Of one without buckets.
constexpr uint32_t kPairsFormat = 2;
// Of one without pooling and indicators.
constexpr uint32_t kBucketFormat = 3;
// Of one without towers, times and scaled labels.
constexpr uint32_t kPoolingFormat = 4;
// Of one with one label.
constexpr uint32_t kTowersFormat = 5;
// Of one without linear weights in table "embedding".
constexpr uint32_t kMultitaskFormat = 6;
// Of one whose fields have vectors of one width.
constexpr uint32_t kLinearColumnsFormat = 7;

// The oldest format that says all of such a model.
uint32_t FormatOf(const ModelPlan& plan, const v1::DataDescription& data, bool normalizes) {
  const auto any = [](const auto& columns, const auto& has) {
    return std::any_of(columns.begin(), columns.end(), has);
  };
  const auto has_time = [](const auto& column) { return column.has_time(); };
  if (plan.has_field_dims()) return kModelFormat;
  if (plan.linear_columns > 0) return kLinearColumnsFormat;
  if (data.labels_size() > 0) return kMultitaskFormat;
  if (plan.two_tower.has_value() || data.label_deviation() > 0 || any(data.categorical(), has_time) ||
      any(data.numeric(), has_time)) {
    return kTowersFormat;
  }
  if (any(data.categorical(), [](const auto& column) { return !column.pooling().empty(); }) ||
      any(data.numeric(), [](const auto& column) { return column.indicates_missing(); })) {
    return kPoolingFormat;
  }
  if (any(data.categorical(), [](const auto& column) { return !column.bucket().empty(); })) return kBucketFormat;
  return plan.numeric_pairs || normalizes ? kPairsFormat : kFirstFormat;
}

}  // namespace

std::string StructureName(const v1::CrossConfig& cross) {
  return Lower(v1::CrossConfig::Structure_Name(cross.structure()));
}
std::string StructureName(const v1::MultitaskConfig& multitask) {
  return Lower(v1::MultitaskConfig::Structure_Name(multitask.structure()));
}

v1::ModelDescription DescribeModel(const ModelPlan& plan, const ModelConfig& config, const Schema& schema,
                                   const std::vector<v1::TableSpec>& tables) {
  v1::ModelDescription description;
  const size_t tower_layers = plan.two_tower.has_value() ? plan.two_tower->user.layers.size() : 0;
  const bool normalizes =
      config.layer_norm() && (plan.multitask.has_value() || plan.mlp.size() + plan.bottom.size() + tower_layers > 1);
  description.set_format(FormatOf(plan, schema.description, normalizes));
  description.set_program(kVersion);
  description.set_type(Lower(ModelConfig::Type_Name(plan.type)));
  description.set_loss(Lower(ModelConfig::Loss_Name(plan.loss)));
  description.set_activation(Lower(ModelConfig::Activation_Name(config.activation())));
  description.set_outputs(plan.outputs);
  description.set_embedding_dim(plan.embedding_dim);
  description.set_linear_columns(plan.linear_columns);
  for (uint32_t field = 0; plan.has_field_dims() && field < plan.field_count; ++field) {
    description.add_field_dims(static_cast<uint32_t>(plan.FieldColumns(field).columns));
  }
  if (!plan.mlp.empty() || tower_layers > 0 || plan.multitask.has_value())
    *description.mutable_hidden() = config.hidden();
  if (!plan.bottom.empty()) *description.mutable_bottom_hidden() = config.bottom_hidden();
  description.set_numeric_pairs(plan.numeric_pairs);
  description.set_layer_norm(normalizes);
  if (plan.type == ModelConfig::DCN) {
    description.mutable_cross()->set_layers(config.cross().layers());
    description.mutable_cross()->set_rank(config.cross().rank());
    description.mutable_cross()->set_structure(StructureName(config.cross()));
  }
  if (plan.two_tower.has_value()) {
    v1::ModelDescription::TwoTower& towers = *description.mutable_two_tower();
    *towers.mutable_user() = config.two_tower().user();
    *towers.mutable_item() = config.two_tower().item();
    towers.set_dim(plan.two_tower->dim);
    towers.set_temperature(plan.two_tower->temperature);
    towers.set_normalize(plan.two_tower->normalizes);
  }
  if (plan.multitask.has_value()) {
    v1::ModelDescription::Multitask& multitask = *description.mutable_multitask();
    multitask.set_structure(StructureName(config.multitask()));
    multitask.set_experts(static_cast<uint32_t>(plan.multitask->experts));
    *multitask.mutable_tower_hidden() = config.multitask().tower_hidden();
    multitask.mutable_loss_weights()->Assign(plan.multitask->loss_weights.begin(), plan.multitask->loss_weights.end());
  }
  *description.mutable_data() = schema.description;
  description.mutable_prior()->Add(plan.prior.begin(), plan.prior.end());
  for (const v1::TableSpec& table : tables) {
    v1::ModelDescription::Table& out = *description.add_tables();
    out.set_name(table.name());
    *out.mutable_dims() = table.dense().dims();
    if (table.has_embedding()) out.set_dim(table.embedding().dim());
  }
  return description;
}

v1::Config ConfigOf(const v1::ModelDescription& description) {
  v1::Config config;
  ModelConfig& model = *config.mutable_model();
  ModelConfig::Type type = ModelConfig::LINEAR;
  ModelConfig::Loss loss = ModelConfig::LOGISTIC;
  ModelConfig::Activation activation = ModelConfig::RELU;
  ModelConfig::Type_Parse(absl::AsciiStrToUpper(description.type()), &type);
  ModelConfig::Loss_Parse(absl::AsciiStrToUpper(description.loss()), &loss);
  ModelConfig::Activation_Parse(absl::AsciiStrToUpper(description.activation()), &activation);
  model.set_type(type);
  model.set_loss(loss);
  model.set_activation(activation);
  if (description.embedding_dim() > 0) model.set_embedding_dim(description.embedding_dim());
  for (int f = 0; f < description.field_dims_size(); ++f) {
    if (description.field_dims(f) == description.embedding_dim()) continue;
    (*model.mutable_embedding_dims())[description.data().categorical(f).name()] = description.field_dims(f);
  }
  *model.mutable_hidden() = description.hidden();
  *model.mutable_bottom_hidden() = description.bottom_hidden();
  model.set_numeric_pairs(description.numeric_pairs());
  model.set_layer_norm(description.layer_norm());
  if (description.has_cross()) {
    v1::CrossConfig::Structure structure = v1::CrossConfig::STACKED;
    v1::CrossConfig::Structure_Parse(absl::AsciiStrToUpper(description.cross().structure()), &structure);
    model.mutable_cross()->set_layers(description.cross().layers());
    model.mutable_cross()->set_rank(description.cross().rank());
    model.mutable_cross()->set_structure(structure);
  }
  if (description.has_two_tower()) {
    v1::TwoTowerConfig& towers = *model.mutable_two_tower();
    *towers.mutable_user() = description.two_tower().user();
    *towers.mutable_item() = description.two_tower().item();
    towers.set_dim(description.two_tower().dim());
    towers.set_temperature(description.two_tower().temperature());
    towers.set_normalize(description.two_tower().normalize());
  }
  if (description.has_multitask()) {
    const v1::ModelDescription::Multitask& was = description.multitask();
    v1::MultitaskConfig& multitask = *model.mutable_multitask();
    v1::MultitaskConfig::Structure structure = v1::MultitaskConfig::SHARED_BOTTOM;
    v1::MultitaskConfig::Structure_Parse(absl::AsciiStrToUpper(was.structure()), &structure);
    multitask.set_structure(structure);
    if (was.experts() > 0) multitask.set_experts(was.experts());
    *multitask.mutable_tower_hidden() = was.tower_hidden();
    for (int k = 0; k < was.loss_weights_size(); ++k) {
      (*multitask.mutable_loss_weights())[description.data().labels(k).name()] = was.loss_weights(k);
    }
  }
  const v1::DataDescription& known = description.data();
  v1::DataConfig& data = *config.mutable_data();
  data.set_standardize_label(known.label_deviation() > 0);
  v1::DataConfig::Format format = v1::DataConfig::AUTO;
  v1::DataConfig::Format_Parse(absl::AsciiStrToUpper(known.format()), &format);
  data.set_format(format);
  if (known.sparse()) data.set_numeric(TransformNamed(known.sparse_transform()).value_or(v1::NONE));
  const bool has_columns = format == v1::DataConfig::CSV || format == v1::DataConfig::PARQUET;
  if (!known.sparse() && known.numeric_size() > 0 && !has_columns) {
    data.set_numeric(TransformNamed(known.numeric(0).transform()).value_or(v1::NONE));
  }
  if (!has_columns) return config;
  v1::CsvConfig& csv = *data.mutable_csv();
  csv.set_header(known.header() ? v1::CsvConfig::YES : v1::CsvConfig::NO);
  csv.set_delimiter(known.delimiter());
  if (known.skip_lines() > 0) csv.set_skip_lines(known.skip_lines());
  if (!known.comment().empty()) csv.set_comment(known.comment());
  if (known.labels_size() == 0) csv.set_label(known.label());
  for (const auto& label : known.labels()) csv.add_labels(label.name());
  *csv.mutable_missing() = known.missing();
  const auto add_time = [&csv](const auto& column, v1::DateTimeColumn::Feature feature) {
    const bool is_new = csv.datetime().count(column.name()) == 0;
    v1::DateTimeColumn& to = (*csv.mutable_datetime())[column.name()];
    for (const TimeRule::Part part : kTimeParts) {
      if (is_new) SetFeature(part, v1::DateTimeColumn::NONE, &to);
    }
    const TimeRule rule = TimeRuleOf(column.time());
    to.set_format(rule.format);
    SetFeature(rule.part, feature, &to);
    if (rule.part == TimeRule::Part::kAgeDays) to.set_age_at(TimeText(rule.age_at));
    return &to;
  };
  for (const auto& column : known.numeric()) {
    if (column.has_time()) {
      add_time(column, v1::DateTimeColumn::NUMBER)
          ->set_transform(TransformNamed(column.transform()).value_or(v1::NONE));
      continue;
    }
    if (column.indicates_missing()) {
      csv.add_missing_indicator(column.name());
      continue;
    }
    csv.add_numeric(column.name());
    (*csv.mutable_transform())[column.name()] = TransformNamed(column.transform()).value_or(v1::NONE);
  }
  for (const auto& column : known.categorical()) {
    v1::CsvConfig::Bucket bucket;
    if (column.has_time()) {
      add_time(column, v1::DateTimeColumn::CATEGORY);
    } else if (!column.pooling().empty()) {
      v1::MultiColumn& multi = (*csv.mutable_multi())[column.name()];
      multi.set_pooling(PoolingNamed(column.pooling()).value_or(v1::MultiColumn::MEAN));
      multi.set_separator(column.separator());
      multi.set_values_max(column.values_max());
    } else if (v1::CsvConfig::Bucket_Parse(absl::AsciiStrToUpper(column.bucket()), &bucket)) {
      (*csv.mutable_bucket())[column.name()] = bucket;
    } else {
      csv.add_categorical(column.name());
    }
  }
  return config;
}

Schema SchemaOf(const std::shared_ptr<const v1::ModelDescription>& description) {
  const v1::DataDescription& data = description->data();
  Schema schema;
  schema.numeric_count = static_cast<uint32_t>(data.numeric_size());
  schema.field_count = static_cast<uint32_t>(data.categorical_size());
  schema.sparse = data.sparse();
  const auto& fields = data.categorical();
  if (std::any_of(fields.begin(), fields.end(), [](const auto& field) { return !field.pooling().empty(); })) {
    for (const auto& field : fields) {
      schema.pooling.push_back(PoolingNamed(field.pooling()).value_or(v1::MultiColumn::MEAN));
    }
  }
  for (const auto& one : data.classes()) {
    schema.class_names.push_back(one.name());
    schema.class_counts.push_back(one.samples());
  }
  for (const auto& label : data.labels()) {
    schema.labels.push_back({label.name(), label.samples(), label.positives(), static_cast<double>(label.samples()),
                             static_cast<double>(label.positives())});
  }
  schema.label_mean = data.label_mean();
  schema.label_deviation = data.label_deviation();
  schema.train_samples = data.samples();
  schema.description = data;
  schema.continued = description;
  return schema;
}

}  // namespace lodestone::worker
