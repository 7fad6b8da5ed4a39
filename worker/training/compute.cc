#include "worker/training/compute.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/base/status.h"

namespace lodestone::worker {

using kernels::Memory;
using kernels::Queue;

namespace {

// Where a device has a prediction's outputs: behind the loss, on a boundary of 256 bytes.
constexpr size_t kPredictionsFloat = 64;

}  // namespace

Compute::Compute(Model* model, const std::vector<TableHandle>* tables)
    : model_(model),
      backend_(model->backend()),
      tables_(tables),
      dense_count_(model->dense_table_count()),
      parameters_(tables->size()),
      gradients_(tables->size()),
      pool_(backend_),
      loss_(backend_, Memory::kHost),
      logits_(backend_, Memory::kHost),
      dense_(backend_),
      device_outputs_(backend_) {
  LODESTONE_CHECK(tables->size() == model->tables().size());
  loss_.Resize(1);
  for (const TableHandle& table : *tables) gradient_floats_.push_back(table.layout.elements);  // Rows': per batch.
}

BatchView Compute::ViewOf(const BatchPipeline::Item& item) const {
  return item.device == nullptr ? item.keyed.view() : item.device->view();
}

void Compute::Take(const BatchPipeline::Item& item, const Parameters& parameters) {
  const bool on_host = backend_->on_host();
  LODESTONE_CHECK(on_host == (item.device == nullptr));
  if (!on_host) {
    item.device->Await();
    float* const dense = dense_.Resize(parameters.floats());
    parameters.ForChangedSince(copied_stamp_, [&](size_t begin, size_t end) {
      backend_->CopyIn(Queue::kCompute, (end - begin) * sizeof(float), parameters.values() + begin, dense + begin);
    });
    copied_stamp_ = parameters.stamp();
  }
  for (size_t t = 0; t < tables_->size(); ++t) {
    if (t < dense_count_) {
      parameters_[t] = on_host ? parameters.values(t) : dense_.data() + parameters.offset(t);
    } else {
      const size_t rows = t - dense_count_;
      parameters_[t] = on_host ? item.rows[rows].data() : item.device->rows(rows);
    }
  }
}

float* Compute::DeviceOutputs(size_t floats) {
  float* const outputs = device_outputs_.Resize(floats);
  if (floats > zeroed_) {  // What lies between the outputs is copied with them.
    backend_->Fill(floats, 0.0f, outputs);
    zeroed_ = floats;
  }
  return outputs;
}

void Compute::StartGradients(const BatchPipeline::Item& item, const Parameters& parameters, uint64_t dropout_seed) {
  const BatchView batch = ViewOf(item);
  if (batch.size == 0) return;  // FinishGradients returns why it is not there.
  Take(item, parameters);
  for (size_t t = dense_count_; t < tables_->size(); ++t) gradient_floats_[t] = item.rows[t - dense_count_].size();
  started_ = pool_.Take();
  StepOutputs& outputs = *started_;
  outputs.Lay(gradient_floats_, item.keyed.batch.size);
  const bool on_host = backend_->on_host();
  float* const base = on_host ? outputs.data() : DeviceOutputs(outputs.floats());
  for (size_t t = 0; t < tables_->size(); ++t) gradients_[t] = outputs.GradientIn(base, t);
  model_->Gradients(batch, parameters_, dropout_seed, gradients_, outputs.PredictionsIn(base), outputs.LossIn(base));
  if (!on_host) backend_->CopyOut(outputs.floats() * sizeof(float), base, outputs.data());
}

absl::StatusOr<double> Compute::FinishGradients() {
  LODESTONE_RETURN_IF_ERROR(backend_->Finish());
  finished_ = std::move(started_);
  return *finished_->LossIn(finished_->data());
}

double Compute::ClipGradients(double norm_max) {
  StepOutputs& outputs = *finished_;
  double squares = 0;
  for (size_t t = 0; t < tables_->size(); ++t) {
    const float* const values = gradient(t);
    for (size_t i = 0; i < outputs.gradient_floats(t); ++i) squares += static_cast<double>(values[i]) * values[i];
  }
  const double norm = std::sqrt(squares);
  if (!(norm > norm_max) || !std::isfinite(norm)) return norm;
  const auto factor = static_cast<float>(norm_max / norm);
  for (size_t t = 0; t < tables_->size(); ++t) {
    float* const values = outputs.GradientIn(outputs.data(), t);
    for (size_t i = 0; i < outputs.gradient_floats(t); ++i) values[i] *= factor;
  }
  return norm;
}

absl::StatusOr<double> Compute::Predict(const BatchPipeline::Item& item, const Parameters& parameters,
                                        float* predictions) {
  const BatchView batch = ViewOf(item);
  if (batch.size == 0) return backend_->Finish();  // Which says why it is not there.
  Take(item, parameters);
  const bool on_host = backend_->on_host();
  const size_t samples = item.keyed.batch.size;
  float* const base = on_host ? nullptr : DeviceOutputs(kPredictionsFloat + samples);
  double* const loss = on_host ? loss_.data() : reinterpret_cast<double*>(base);
  float* const to = on_host ? predictions : base + kPredictionsFloat;
  model_->Predict(batch, parameters_, to, loss);
  if (!on_host) {
    backend_->CopyOut(samples * sizeof(float), to, predictions);
    backend_->CopyOut(sizeof(double), loss, loss_.data());
    const size_t logits = NeedsLogits() ? samples * model_->OutputsOf(samples) : 0;
    if (logits > 0) backend_->CopyOut(logits * sizeof(float), model_->logits(), logits_.Resize(logits));
  }
  LODESTONE_RETURN_IF_ERROR(backend_->Finish());
  return loss_[0];
}

bool Compute::NeedsLogits() const {
  const EvaluationMetrics::Kind kind = model_->metrics_kind();
  return model_->plan().multitask.has_value() || kind == EvaluationMetrics::Kind::kRetrieval ||
         (kind == EvaluationMetrics::Kind::kMulticlass && model_->plan().outputs > EvaluationMetrics::kTopK);
}

EvaluationMetrics::Details Compute::DetailsOf(const Batch& batch) const {
  EvaluationMetrics::Details details;
  if (!batch.groups.empty()) details.groups = batch.groups.data();
  details.weights = batch.weights_or_null();
  details.classes = model_->OutputsOf(batch.size);
  if (model_->plan().multitask.has_value()) details.label_weights = batch.label_weights.data();
  if (NeedsLogits()) details.logits = backend_->on_host() ? model_->logits() : logits_.data();
  return details;
}

}  // namespace lodestone::worker
