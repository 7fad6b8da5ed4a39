#include "tools/bench/local_training.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/random.h"
#include "common/status.h"
#include "kernels/matmul.h"
#include "server/optimizer/initializer.h"
#include "tools/bench/step_sizes.h"
#include "worker/data/zipf.h"

namespace lodestone::bench {
namespace {

constexpr size_t kSamples = 1 << 17;  // Drawn, but at least two batches and at most 16.
constexpr uint64_t kSeed = 1;

constexpr size_t kRowsAhead = 8;  // That are fetched into the cache before they are read.

absl::StatusOr<v1::Config> ConfigOf(const std::string& model, const std::string& optimizer) {
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

// Of random data: all labels are as likely as DrawBatch makes them.
Schema SchemaOf(const v1::ModelConfig& model) {
  const bool images = model.type() == v1::ModelConfig::MLP;
  Schema schema;
  schema.numeric_count = images ? kPixels : kNumeric;
  schema.field_count = images ? 0 : kFields;
  for (uint32_t c = 0; c < (images ? kClasses : 2); ++c) schema.class_names.push_back(absl::StrCat(c));
  schema.class_counts.assign(schema.class_names.size(), 1);
  return schema;
}

const uint8_t* Bytes(const float* floats) { return reinterpret_cast<const uint8_t*>(floats); }

}  // namespace

absl::StatusOr<std::unique_ptr<LocalTraining>> LocalTraining::Create(const std::string& model, size_t batch_size,
                                                                     const std::string& optimizer) {
  LODESTONE_ASSIGN_OR_RETURN(const v1::Config config, ConfigOf(model, optimizer));
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<Model> made, Model::Create(config, SchemaOf(config.model())));
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<const Optimizer> method, Optimizer::Create(config.model().optimizer()));
  return std::unique_ptr<LocalTraining>(new LocalTraining(config, std::move(made), std::move(method), batch_size));
}

LocalTraining::LocalTraining(const v1::Config& config, std::unique_ptr<Model> model,
                             std::unique_ptr<const Optimizer> optimizer, size_t batch_size)
    : step_{.learning_rate = config.model().optimizer().learning_rate()},
      model_(std::move(model)),
      optimizer_(std::move(optimizer)),
      batches_(std::clamp<size_t>(kSamples / batch_size, 2, 16)) {
  for (const v1::TableSpec& spec : model_->tables()) AddTable(spec);
  parameters_.resize(tables_.size());
  gradients_.resize(tables_.size());
  for (size_t b = 0; b < batches_.size(); ++b) DrawBatch(b, batch_size, &batches_[b].batch);
  const ModelPlan& plan = model_->plan();
  AddProducts(plan.bottom, batch_size, /*input_gradient=*/false);
  AddProducts(plan.mlp, batch_size, /*input_gradient=*/plan.embedding_dim > 0);
}

void LocalTraining::AddTable(const v1::TableSpec& spec) {
  const size_t index = tables_.size();
  Table& table = tables_.emplace_back();
  if (spec.has_dense()) {
    const auto& dims = spec.dense().dims();
    size_t elements = 1;
    for (uint64_t dim : dims) elements *= dim;
    table.values.resize(elements);
    table.gradient.resize(elements);
    table.state.resize(optimizer_->state_layout().FloatsFor(elements));
    InitializeValues(spec.initializer(), kSeed + index, 0, 0, elements, dims.Get(0), dims.Get(dims.size() - 1),
                     table.values.data());
    optimizer_->InitializeState(table.state.data(), elements);
    return;
  }
  const size_t dim = spec.embedding().dim();
  table.row_floats = dim + optimizer_->state_layout().FloatsFor(dim);
  table.values.resize(kFields * kValuesPerField * table.row_floats);
  for (Key key = 0; key < kFields * kValuesPerField; ++key) {
    float* const row = table.values.data() + key * table.row_floats;
    InitializeValues(spec.initializer(), kSeed + index, key, 0, dim, 0, 0, row);
    optimizer_->InitializeState(row + dim, dim);
  }
}

void LocalTraining::DrawBatch(uint64_t index, size_t size, Batch* batch) const {
  const ModelPlan& plan = model_->plan();
  const uint64_t seed = StreamSeed(kSeed, index);
  batch->size = size;
  uint64_t n = 0;
  for (size_t s = 0; s < size; ++s) {
    const double u = RandomUniform(seed, n++);
    batch->labels.push_back(plan.outputs > 1 ? static_cast<float>(static_cast<int>(u * plan.outputs))
                                             : static_cast<float>(u < kPositiveShare));
  }
  const bool images = plan.field_count == 0;
  for (size_t i = 0; i < size * plan.numeric_count; ++i, ++n) {
    batch->numeric.push_back(static_cast<float>(images ? RandomUniform(seed, n) : RandomNormal(seed, n)));
  }
  const Zipf zipf(kValuesPerField, kZipfExponent);
  for (size_t s = 0; s <= size; ++s) batch->offsets.push_back(static_cast<uint32_t>(s * plan.field_count));
  for (size_t f = 0; f < size * plan.field_count; ++f) {
    batch->keys.push_back(f % plan.field_count * kValuesPerField + zipf.Draw(StreamSeed(seed, f + 1), 0) - 1);
  }
}

const float* LocalTraining::NewMatrix(size_t elements) {
  matrices_.push_back(std::make_unique<AlignedFloats>(elements));
  for (size_t i = 0; i < elements; ++i) {
    (*matrices_.back())[i] = static_cast<float>(RandomUniform(matrices_.size(), i)) - 0.5f;
  }
  return matrices_.back()->data();
}

void LocalTraining::AddProducts(const std::vector<DenseLayer>& layers, size_t batch_size, bool input_gradient) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const size_t in = layers[i].in, out = layers[i].out;
    const float* const x = NewMatrix(batch_size * in);
    const float* const weight = NewMatrix(in * out);
    const float* const dy = NewMatrix(batch_size * out);
    const auto result = [&](size_t elements) { return const_cast<float*>(NewMatrix(elements)); };
    products_.push_back({false, false, batch_size, out, in, x, weight, result(batch_size * out)});
    products_.push_back({true, false, in, out, batch_size, x, dy, result(in * out)});
    if (i > 0 || input_gradient) {
      products_.push_back({false, true, batch_size, in, out, dy, weight, result(batch_size * in)});
    }
  }
}

void LocalTraining::Products() {
  for (const Product& p : products_) {
    kernels::cpu::MatMul(p.transpose_a, p.transpose_b, p.m, p.n, p.k, 1, p.a, p.b, 0, p.c);
  }
}

double LocalTraining::Step() {
  KeyedBatch& batch = batches_[steps_++ % batches_.size()];
  indexer_.Index(&batch);
  for (size_t t = 0; t < tables_.size(); ++t) {
    Table& table = tables_[t];
    if (table.row_floats > 0) GatherRows(batch, model_->tables()[t].embedding().dim(), &table);
    parameters_[t] = table.row_floats > 0 ? table.rows.data() : table.values.data();
    gradients_[t] = table.gradient.data();
  }
  const double loss = model_->Gradients(batch, parameters_, /*dropout_seed=*/0, gradients_);
  Update(batch);
  return loss;
}

void LocalTraining::GatherRows(const KeyedBatch& batch, size_t dim, Table* table) {
  table->rows.resize(batch.keys.size() * dim);
  table->gradient.resize(batch.keys.size() * dim);
  const auto row = [&](size_t i) { return table->values.data() + batch.keys[i] * table->row_floats; };
  for (size_t i = 0; i < batch.keys.size(); ++i) {
    if (i + kRowsAhead < batch.keys.size()) __builtin_prefetch(row(i + kRowsAhead));
    const float* const from = row(i);
    float* const to = table->rows.data() + i * dim;
    for (size_t d = 0; d < dim; ++d) to[d] = from[d];
  }
}

void LocalTraining::Update(const KeyedBatch& batch) {
  for (size_t t = 0; t < tables_.size(); ++t) {
    Table& table = tables_[t];
    if (table.row_floats == 0) {
      const size_t n = table.values.size();
      optimizer_->Update(step_, {n, 0, n}, Bytes(table.gradient.data()), table.values.data(), table.state.data(),
                         table.values.data(), table.state.data());
      continue;
    }
    const size_t dim = model_->tables()[t].embedding().dim();
    updates_.clear();
    for (size_t i = 0; i < batch.keys.size(); ++i) {
      updates_.push_back(
          {Bytes(table.gradient.data() + i * dim), table.values.data() + batch.keys[i] * table.row_floats});
    }
    optimizer_->UpdateRows(step_, dim, updates_);
  }
}

}  // namespace lodestone::bench
