#include "tools/bench/step/local_training.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "server/optimizer/initializer.h"
#include "tools/bench/step/step_data.h"
#include "tools/bench/step/step_sizes.h"

namespace lodestone::bench {
namespace {

using kernels::Queue;

constexpr size_t kSamples = 1 << 17;  // Drawn, but at least two batches and at most 16.
constexpr uint64_t kSeed = 1;

constexpr size_t kRowsAhead = 8;  // That are fetched into the cache before they are read.

const uint8_t* Bytes(const float* floats) { return reinterpret_cast<const uint8_t*>(floats); }

}  // namespace

absl::StatusOr<std::unique_ptr<LocalTraining>> LocalTraining::Create(const std::string& model, size_t batch_size,
                                                                     const std::string& optimizer,
                                                                     kernels::Backend* backend, bool ordered) {
  LODESTONE_ASSIGN_OR_RETURN(const v1::Config config, StepConfig(model, optimizer));
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<worker::Model> made,
                             worker::Model::Create(config, StepSchema(config.model()), backend));
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<const server::Optimizer> method,
                             server::Optimizer::Create(config.model().optimizer()));
  std::unique_ptr<LocalTraining> training(
      new LocalTraining(config, std::move(made), std::move(method), batch_size, ordered));
  for (const v1::TableSpec& spec : training->model_->tables()) {
    if (!training->AddTable(spec)) break;  // Finish says why.
  }
  training->rows_ = training->NewRows();
  LODESTONE_RETURN_IF_ERROR(backend->Finish());
  return training;
}

LocalTraining::LocalTraining(const v1::Config& config, std::unique_ptr<worker::Model> model,
                             std::unique_ptr<const server::Optimizer> optimizer, size_t batch_size, bool ordered)
    : step_{.learning_rate = config.model().optimizer().learning_rate()},
      model_(std::move(model)),
      backend_(model_->backend()),
      optimizer_(std::move(optimizer)),
      batch_size_(batch_size),
      ordered_(ordered),
      batches_(std::clamp<size_t>(kSamples / batch_size, 2, 16)),
      outputs_(backend_),
      device_outputs_(backend_),
      parameters_(model_->tables().size()),
      gradients_(model_->tables().size()) {
  for (size_t b = 0; b < batches_.size(); ++b) batches_[b].batch = DrawBatch(model_->plan(), b, batch_size);
}

bool LocalTraining::AddTable(const v1::TableSpec& spec) {
  const size_t index = tables_.size();
  Table& table = tables_.emplace_back(backend_, spec.has_dense() ? 0 : spec.embedding().dim());
  if (spec.has_dense()) {
    const auto& dims = spec.dense().dims();
    size_t elements = 1;
    for (uint64_t dim : dims) elements *= dim;
    if (table.dense.Resize(elements) == nullptr) return false;
    table.state.resize(optimizer_->state_layout().FloatsFor(elements));
    server::InitializeValues(spec.initializer(), kSeed + index, 0, 0, elements, dims.Get(0), dims.Get(dims.size() - 1),
                             table.dense.data());
    optimizer_->InitializeState(table.state.data(), elements);
    return true;
  }
  const size_t dim = table.dim;
  table.row_floats = dim + optimizer_->state_layout().FloatsFor(dim);
  table.rows.resize(kFields * kValuesPerField * table.row_floats);
  for (Key key = 0; key < kFields * kValuesPerField; ++key) {
    float* const row = table.rows.data() + key * table.row_floats;
    server::InitializeValues(spec.initializer(), kSeed + index, key, 0, dim, 0, 0, row);
    optimizer_->InitializeState(row + dim, dim);
  }
  return true;
}

LocalTraining::BatchRows LocalTraining::NewRows() {
  BatchRows rows;
  for (const Table& table : tables_) {
    if (table.dim > 0) rows.host.emplace_back(backend_, kernels::Memory::kHost);
  }
  if (!backend_->on_host())
    rows.device = std::make_unique<worker::DeviceBatch>(backend_, ordered_, /*groups=*/1, rows.host.size());
  return rows;
}

bool LocalTraining::GatherRows(const worker::KeyedBatch& batch, BatchRows* rows) {
  const std::vector<Key>& keys = batch.KeysOf(0);
  auto gathered = rows->host.begin();
  for (const Table& table : tables_) {
    if (table.dim == 0) continue;
    const auto row = [&](size_t i) { return table.rows.data() + keys[i] * table.row_floats; };
    float* to = (gathered++)->Resize(keys.size() * table.dim);
    if (to == nullptr) return false;
    for (size_t i = 0; i < keys.size(); ++i, to += table.dim) {
      if (i + kRowsAhead < keys.size()) __builtin_prefetch(row(i + kRowsAhead));
      const float* const from = row(i);
      for (size_t d = 0; d < table.dim; ++d) to[d] = from[d];
    }
  }
  return true;
}

void LocalTraining::Pack(const worker::KeyedBatch& batch, BatchRows* rows) {
  if (rows->device == nullptr) return;
  std::vector<size_t> row_floats;
  for (const Floats& floats : rows->host) row_floats.push_back(floats.size());
  rows->device->Pack(batch, row_floats);
}

void LocalTraining::Upload(BatchRows* rows) {
  if (rows->device != nullptr) rows->device->Upload(rows->host);
}

template <typename Meanwhile>
absl::StatusOr<double> LocalTraining::Compute(const worker::KeyedBatch& batch, const BatchRows& rows,
                                              const Meanwhile& meanwhile) {
  const bool on_host = backend_->on_host();
  std::vector<size_t> gradient_floats;
  for (const Table& table : tables_) {
    gradient_floats.push_back(table.dim > 0 ? batch.KeysOf(0).size() * table.dim : table.dense.size());
  }
  outputs_.Lay(gradient_floats, batch.batch.size);
  float* const base = on_host ? outputs_.data() : device_outputs_.Resize(outputs_.floats());
  size_t r = 0;  // Of the embedding tables.
  for (size_t t = 0; t < tables_.size(); ++t) {
    Table& table = tables_[t];
    gradients_[t] = outputs_.GradientIn(base, t);
    if (table.dim > 0) {
      parameters_[t] = on_host ? rows.host[r].data() : rows.device->rows(r);
      ++r;
    } else if (on_host) {
      parameters_[t] = table.dense.data();
    } else {
      float* const to = table.on_device.Resize(table.dense.size());
      if (!dense_sent_) backend_->CopyIn(Queue::kCompute, table.dense.size() * sizeof(float), table.dense.data(), to);
      parameters_[t] = to;
    }
  }
  dense_sent_ = true;
  if (!on_host) rows.device->Await();
  model_->Gradients(on_host ? batch.view() : rows.device->view(), parameters_, /*dropout_seed=*/0, gradients_,
                    outputs_.PredictionsIn(base), outputs_.LossIn(base));
  if (!on_host) backend_->CopyOut(outputs_.floats() * sizeof(float), base, outputs_.data());
  meanwhile();
  LODESTONE_RETURN_IF_ERROR(backend_->Finish());
  return *outputs_.LossIn(outputs_.data());
}

absl::StatusOr<double> LocalTraining::Step() {
  worker::KeyedBatch& batch = batches_[steps_++ % batches_.size()];
  indexer_.Index(&batch);
  if (!GatherRows(batch, &rows_)) return backend_->Finish();
  Pack(batch, &rows_);
  Upload(&rows_);
  LODESTONE_ASSIGN_OR_RETURN(const double loss, Compute(batch, rows_, [] {}));
  Update(batch);
  return loss;
}

absl::Status LocalTraining::PrepareBatches() {
  for (worker::KeyedBatch& batch : batches_) {
    indexer_.Index(&batch);
    BatchRows& rows = prepared_.emplace_back(NewRows());
    if (!GatherRows(batch, &rows)) return backend_->Finish();
    Pack(batch, &rows);
  }
  Upload(&prepared_[0]);
  return backend_->Finish();
}

absl::StatusOr<double> LocalTraining::Gradients() {
  if (prepared_.empty()) LODESTONE_RETURN_IF_ERROR(PrepareBatches());
  const size_t current = uploaded_;
  uploaded_ = (uploaded_ + 1) % batches_.size();
  return Compute(batches_[current], prepared_[current], [&] { Upload(&prepared_[uploaded_]); });
}

void LocalTraining::Update(const worker::KeyedBatch& batch) {
  for (size_t t = 0; t < tables_.size(); ++t) {
    Table& table = tables_[t];
    const float* const gradient = outputs_.GradientIn(outputs_.data(), t);
    if (table.dim == 0) {
      const size_t n = table.dense.size();
      optimizer_->Update(step_, {n, 0, n}, Bytes(gradient), table.dense.data(), table.state.data(), table.dense.data(),
                         table.state.data());
      continue;
    }
    updates_.clear();
    const std::vector<Key>& keys = batch.KeysOf(0);
    for (size_t i = 0; i < keys.size(); ++i) {
      updates_.push_back({Bytes(gradient + i * table.dim), table.rows.data() + keys[i] * table.row_floats});
    }
    optimizer_->UpdateRows(step_, table.dim, updates_);
  }
  dense_sent_ = false;
}

float* LocalTraining::NewMatrix(size_t elements, bool drawn) {
  float* const matrix = matrices_.emplace_back(backend_).Resize(elements);
  if (!drawn || matrix == nullptr) return matrix;
  worker::AlignedFloats values(elements);
  for (size_t i = 0; i < elements; ++i) {
    values[i] = static_cast<float>(RandomUniform(matrices_.size(), i)) - 0.5f;
  }
  backend_->CopyIn(Queue::kCompute, elements * sizeof(float), values.data(), matrix);
  backend_->Finish().IgnoreError();  // `values` goes; what failed is kept.
  return matrix;
}

void LocalTraining::AddProducts(const std::vector<worker::DenseLayer>& layers, bool input_gradient) {
  for (size_t i = 0; i < layers.size(); ++i) {
    const size_t in = layers[i].in, out = layers[i].out;
    const float* const x = NewMatrix(batch_size_ * in, /*drawn=*/true);
    const float* const weight = NewMatrix(in * out, /*drawn=*/true);
    const float* const dy = NewMatrix(batch_size_ * out, /*drawn=*/true);
    const auto result = [&](size_t elements) { return NewMatrix(elements, /*drawn=*/false); };
    products_.push_back({false, false, batch_size_, out, in, x, weight, result(batch_size_ * out)});
    products_.push_back({true, false, in, out, batch_size_, x, dy, result(in * out)});
    if (i > 0 || input_gradient) {
      products_.push_back({false, true, batch_size_, in, out, dy, weight, result(batch_size_ * in)});
    }
  }
}

absl::Status LocalTraining::Products() {
  if (products_.empty()) {
    const worker::ModelPlan& plan = model_->plan();
    AddProducts(plan.bottom, /*input_gradient=*/false);
    AddProducts(plan.mlp, /*input_gradient=*/plan.embedding_dim > 0);
  }
  for (const Product& p : products_) {
    backend_->MatMul(p.transpose_a, p.transpose_b, p.m, p.n, p.k, 1, p.a, p.b, 0, p.c);
  }
  return backend_->Finish();
}

}  // namespace lodestone::bench
