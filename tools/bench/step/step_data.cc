#include "tools/bench/step/step_data.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/random.h"
#include "tools/bench/step/step_sizes.h"
#include "worker/data/zipf.h"

namespace lodestone::bench {
namespace {

constexpr uint64_t kSeed = 1;

}  // namespace

absl::StatusOr<v1::Config> StepConfig(const std::string& model, const std::string& optimizer) {
  v1::Config config;
  v1::ModelConfig* const to = config.mutable_model();
  const std::vector<std::string> parts = absl::StrSplit(model, '/');
  if (parts.size() != 2) return absl::InvalidArgumentError(absl::StrCat("model ", model, ": not TYPE/WIDTH-WIDTH"));
  v1::ModelConfig::Type type;
  if (!v1::ModelConfig::Type_Parse(absl::AsciiStrToUpper(parts[0]), &type) ||
      (type != v1::ModelConfig::DEEPFM && type != v1::ModelConfig::DLRM && type != v1::ModelConfig::MLP)) {
    return absl::InvalidArgumentError(absl::StrCat("model ", model, ": there are deepfm, dlrm and mlp"));
  }
  to->set_type(type);
  to->set_embedding_dim(kDim);
  if (type == v1::ModelConfig::DLRM) to->add_bottom_hidden(kBottomHidden);
  const std::vector<std::string> widths = absl::StrSplit(parts[1], '-');
  for (const std::string& text : widths) {
    uint32_t width = 0;
    if (!absl::SimpleAtoi(text, &width) || width == 0) {
      return absl::InvalidArgumentError(absl::StrCat("model ", model, ": ", text, " is no width"));
    }
    to->add_hidden(width);
  }
  if (optimizer == "adagrad") {
    to->mutable_optimizer()->mutable_adagrad();
    to->mutable_optimizer()->set_learning_rate(0.05f);
  } else if (optimizer == "sgd") {
    to->mutable_optimizer()->mutable_sgd();
    to->mutable_optimizer()->set_learning_rate(0.01f);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("optimizer ", optimizer, ": there are adagrad and sgd"));
  }
  return config;
}

// All labels are as likely as DrawBatch makes them.
worker::Schema StepSchema(const v1::ModelConfig& model) {
  const bool images = model.type() == v1::ModelConfig::MLP;
  worker::Schema schema;
  schema.numeric_count = images ? kPixels : kNumeric;
  schema.field_count = images ? 0 : kFields;
  for (uint32_t c = 0; c < (images ? kClasses : 2); ++c) schema.class_names.push_back(absl::StrCat(c));
  schema.class_counts.assign(schema.class_names.size(), 1);
  return schema;
}

worker::Batch DrawBatch(const worker::ModelPlan& plan, uint64_t number, size_t size) {
  const uint64_t seed = StreamSeed(kSeed, number);
  worker::Batch batch;
  batch.size = size;
  uint64_t n = 0;
  for (size_t s = 0; s < size; ++s) {
    const double u = RandomUniform(seed, n++);
    batch.labels.push_back(plan.outputs > 1 ? static_cast<float>(static_cast<int>(u * plan.outputs))
                                            : static_cast<float>(u < kPositiveShare));
  }
  const bool images = plan.field_count == 0;
  for (size_t i = 0; i < size * plan.numeric_count; ++i, ++n) {
    batch.numeric.push_back(static_cast<float>(images ? RandomUniform(seed, n) : RandomNormal(seed, n)));
  }
  const worker::Zipf zipf(kValuesPerField, kZipfExponent);
  for (size_t s = 0; s <= size; ++s) batch.offsets.push_back(static_cast<uint32_t>(s * plan.field_count));
  for (size_t f = 0; f < size * plan.field_count; ++f) {
    batch.keys.push_back(f % plan.field_count * kValuesPerField + zipf.Draw(StreamSeed(seed, f + 1), 0) - 1);
  }
  return batch;
}

}  // namespace lodestone::bench
