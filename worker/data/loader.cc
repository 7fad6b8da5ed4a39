#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/machine_limits.h"
#include "worker/data/data_files.h"
#include "worker/data/dataset.h"
#include "worker/data/generated_clicks.h"
#include "worker/data/generated_ratings.h"
#include "worker/data/idx.h"
#include "worker/data/label_counts.h"
#include "worker/data/text_loader.h"
#include "worker/data/transform.h"

namespace lodestone::worker {
namespace {

using Format = v1::DataConfig;

absl::StatusOr<LoadedData> Generate(const v1::Config& config, LabelKind labels, Partition partition, bool with_test,
                                    const LoadProgress::Callback& progress) {
  const v1::DataConfig& data = config.data();
  const v1::GeneratedConfig& generated = data.generated();
  if (data.test_share() > 0) {
    return absl::InvalidArgumentError(
        "data.test_share is for files; generated data has data.generated.test_samples beside its training samples");
  }
  LODESTONE_RETURN_IF_ERROR(CheckLabelColumns(data, labels, nullptr));
  if (labels == LabelKind::kSeveral) {
    return absl::InvalidArgumentError(
        "generated samples have one label, and model.type: multitask takes several: name csv or parquet files in "
        "data.train");
  }
  if (data.label_map_size() > 0) {
    return absl::InvalidArgumentError("data.label_map is for labels in files, but the data is generated");
  }
  if (!data.csv().weight().empty() || data.standardize_label()) {
    return absl::InvalidArgumentError(absl::StrCat(data.standardize_label() ? "data.standardize_label" : "csv.weight",
                                                   " is for files, but the data is generated; leave it out"));
  }
  if (generated.train_samples() == 0 || generated.values_per_field() == 0 || generated.users() == 0 ||
      generated.items() == 0) {
    return absl::InvalidArgumentError("data.generated: numbers of samples, values, users and items are at least 1");
  }
  if (generated.kind() == v1::GeneratedConfig::CLICKS) {
    return GenerateClicks(generated, ResolveTransform(data.numeric(), v1::NONE), config.cluster().seed(), labels,
                          partition, with_test, progress);
  }
  if (labels == LabelKind::kClass) {
    return absl::InvalidArgumentError("generated ratings are numbers, not classes: set model.loss to squared");
  }
  return GenerateRatings(generated, config.cluster().seed(), partition, with_test, progress);
}

// Generated samples have keys and numbers, but no text that they are made of.
void DescribeGenerated(Schema* schema) {
  v1::DataDescription& description = schema->description;
  description.set_format("generated");
  description.set_label_mean(schema->label_mean);
  description.set_samples(schema->train_samples);
  for (uint32_t i = 0; i < schema->numeric_count; ++i) {
    v1::DataDescription::NumericColumn& column = *description.add_numeric();
    column.set_name(absl::StrCat("number ", i));
    column.set_transform(TransformName(v1::NONE));
    column.set_deviation(1);
  }
  for (uint32_t i = 0; i < schema->field_count; ++i) {
    description.add_categorical()->set_name(absl::StrCat("field ", i));
  }
  for (size_t c = 0; c < schema->class_names.size(); ++c) {
    v1::DataDescription::Class& one = *description.add_classes();
    one.set_name(schema->class_names[c]);
    one.add_labels(schema->class_names[c]);
    one.set_samples(schema->class_counts[c]);
  }
}

// What this worker keeps beside its partition of the files.
SampleLimits LimitsOf(const v1::Config& config, const Partition& partition, bool with_test) {
  SampleLimits limits;
  limits.with_test = with_test;
  if (partition.index > 0 && config.train().has_validate()) limits.test = config.train().validate().samples_max();
  if (partition.index == 0 && partition.count > 1) limits.train_sample = config.train().evaluate_train_samples_max();
  return limits;
}

// `threads`: that parse files.
absl::StatusOr<LoadedData> LoadFiles(const v1::DataConfig& config, LabelKind labels, Partition partition,
                                     const SampleLimits& limits, uint32_t threads,
                                     const LoadProgress::Callback& progress, const v1::DataDescription* known) {
  LODESTONE_ASSIGN_OR_RETURN(FoundData found, FindData(config, limits.with_test));
  if (found.format != Format::IDX) {
    found.files.threads = threads;
    return LoadText(config, found.format, found.files, labels, partition, progress, known, limits);
  }
  LODESTONE_RETURN_IF_ERROR(CheckLabelColumns(config, labels, known));
  if (labels == LabelKind::kSeveral) {
    return absl::InvalidArgumentError(absl::StrCat("csv.labels: images, as in ", found.files.train[0],
                                                   ", have one label; name csv or parquet files in data.train"));
  }
  if (config.read() == Format::SHARE) {
    return absl::InvalidArgumentError(absl::StrCat("data.read: share is for text, Parquet and npy, and ",
                                                   found.files.train[0], " is read as IDX; leave it out"));
  }
  if (!config.csv().weight().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("csv.weight: images, as in ", found.files.train[0], ", have no column of weights; leave it out"));
  }
  const IdxFiles train{std::move(found.files.train), std::move(found.train_labels)};
  const IdxFiles test{std::move(found.files.test), std::move(found.test_labels)};
  return LoadIdx(config, train, test, labels, partition, progress, known, limits);
}

}  // namespace

absl::StatusOr<LoadedData> LoadData(const v1::Config& config, LabelKind labels, Partition partition, bool with_test,
                                    const std::function<void(uint64_t done, uint64_t total)>& progress,
                                    std::shared_ptr<const v1::ModelDescription> continued) {
  if (partition.count == 0 || partition.index >= partition.count) {
    return absl::InvalidArgumentError(absl::StrCat("partition ", partition.index, " of ", partition.count));
  }
  partition.seed = config.cluster().seed();
  partition.test_share = config.data().test_share();
  const bool generated = IsGenerated(config.data());
  const uint32_t threads = config.worker().threads() > 0 ? config.worker().threads() : MachineCores();
  try {
    const v1::DataDescription* const known = continued == nullptr ? nullptr : &continued->data();
    absl::StatusOr<LoadedData> data = generated
                                          ? Generate(config, labels, partition, with_test, progress)
                                          : LoadFiles(config.data(), labels, partition,
                                                      LimitsOf(config, partition, with_test), threads, progress, known);
    if (!data.ok()) return data;
    if (generated) DescribeGenerated(&data->schema);
    data->schema.continued = std::move(continued);
    return data;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("not enough memory for the data; use more workers");
  }
}

}  // namespace lodestone::worker
