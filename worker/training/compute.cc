#include "worker/training/compute.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/base/status.h"

namespace lodestone::worker {

using kernels::Memory;
using kernels::Queue;

Compute::Compute(Model* model, const std::vector<TableHandle>* tables)
    : model_(model),
      backend_(model->backend()),
      tables_(tables),
      dense_count_(model->dense_table_count()),
      parameters_(tables->size()),
      outputs_(tables->size()),
      predictions_(backend_, Memory::kHost),
      loss_(backend_, Memory::kHost),
      logits_(backend_, Memory::kHost),
      device_predictions_(backend_),
      device_loss_(backend_) {
  LODESTONE_CHECK(tables->size() == model->tables().size());
  loss_.Resize(1);
  gradients_.resize(backend_->on_host() ? 1 : 2);
  for (auto& gradients : gradients_) {
    for (size_t t = 0; t < tables->size(); ++t) {
      gradients.emplace_back(backend_, Memory::kHost);
      if (t < dense_count_) gradients[t].Resize((*tables)[t].layout.elements);
    }
  }
  if (backend_->on_host()) return;
  device_loss_.Resize(1);
  for (size_t t = 0; t < tables->size(); ++t) {
    device_gradients_.emplace_back(backend_);
    if (t >= dense_count_) continue;
    device_gradients_[t].Resize((*tables)[t].layout.elements);
    dense_.emplace_back(backend_).Resize((*tables)[t].layout.elements);
  }
}

BatchView Compute::ViewOf(const BatchPipeline::Item& item) const {
  return item.device == nullptr ? item.keyed.view() : item.device->view();
}

void Compute::Take(const BatchPipeline::Item& item, const Parameters& parameters) {
  const bool on_host = backend_->on_host();
  LODESTONE_CHECK(on_host == (item.device == nullptr));
  if (!on_host) {
    item.device->Await();
    CopyChanged(parameters);
  }
  for (size_t t = 0; t < tables_->size(); ++t) {
    if (t < dense_count_) {
      parameters_[t] = on_host ? parameters.values(t) : dense_[t].data();
    } else {
      const size_t rows = t - dense_count_;
      parameters_[t] = on_host ? item.rows[rows].data() : item.device->rows(rows);
    }
  }
}

void Compute::CopyChanged(const Parameters& parameters) {
  for (size_t t = 0; t < dense_count_; ++t) {
    const BlockLayout& layout = (*tables_)[t].layout;
    for (BlockIndex b = 0; b < layout.block_count(); ++b) {
      if (parameters.block_stamp(t, b) <= copied_stamp_) continue;
      const uint64_t offset = uint64_t{b} * layout.block_elements;
      backend_->CopyIn(Queue::kCompute, layout.ElementsOf(b) * sizeof(float), parameters.values(t) + offset,
                       dense_[t].data() + offset);
    }
  }
  copied_stamp_ = parameters.stamp();
}

void Compute::StartGradients(const BatchPipeline::Item& item, const Parameters& parameters, uint64_t dropout_seed) {
  Take(item, parameters);
  const bool on_host = backend_->on_host();
  std::vector<kernels::ScratchArray<float>>& gradients = gradients_[(finished_ + 1) % gradients_.size()];
  for (size_t t = 0; t < tables_->size(); ++t) {
    if (t >= dense_count_) gradients[t].Resize(item.rows[t - dense_count_].size());
    outputs_[t] = on_host ? gradients[t].data() : device_gradients_[t].Resize(gradients[t].size());
  }
  double* const loss = on_host ? loss_.data() : device_loss_.data();
  const size_t samples = item.keyed.batch.size;
  predictions_.Resize(samples);
  float* const told = on_host ? predictions_.data() : device_predictions_.Resize(samples);
  model_->Gradients(ViewOf(item), parameters_, dropout_seed, outputs_, told, loss);
  if (on_host) return;
  for (size_t t = 0; t < tables_->size(); ++t) {
    backend_->CopyOut(gradients[t].size() * sizeof(float), outputs_[t], gradients[t].data());
  }
  backend_->CopyOut(samples * sizeof(float), told, predictions_.data());
  backend_->CopyOut(sizeof(double), loss, loss_.data());
}

absl::StatusOr<double> Compute::FinishGradients() {
  LODESTONE_RETURN_IF_ERROR(backend_->Finish());
  finished_ = (finished_ + 1) % gradients_.size();
  return loss_[0];
}

double Compute::ClipGradients(double norm_max) {
  double squares = 0;
  for (const kernels::ScratchArray<float>& gradient : gradients_[finished_]) {
    for (size_t i = 0; i < gradient.size(); ++i) squares += static_cast<double>(gradient[i]) * gradient[i];
  }
  const double norm = std::sqrt(squares);
  if (!(norm > norm_max) || !std::isfinite(norm)) return norm;
  const auto factor = static_cast<float>(norm_max / norm);
  for (kernels::ScratchArray<float>& gradient : gradients_[finished_]) {
    float* const values = gradient.data();
    for (size_t i = 0; i < gradient.size(); ++i) values[i] *= factor;
  }
  return norm;
}

absl::StatusOr<double> Compute::Predict(const BatchPipeline::Item& item, const Parameters& parameters,
                                        float* predictions) {
  Take(item, parameters);
  const bool on_host = backend_->on_host();
  const size_t samples = item.keyed.batch.size;
  double* const loss = on_host ? loss_.data() : device_loss_.data();
  float* const to = on_host ? predictions : device_predictions_.Resize(samples);
  model_->Predict(ViewOf(item), parameters_, to, loss);
  if (!on_host) {
    backend_->CopyOut(samples * sizeof(float), to, predictions);
    backend_->CopyOut(sizeof(double), loss, loss_.data());
    const size_t logits = Ranks() ? samples * model_->OutputsOf(samples) : 0;
    if (logits > 0) backend_->CopyOut(logits * sizeof(float), model_->logits(), logits_.Resize(logits));
  }
  LODESTONE_RETURN_IF_ERROR(backend_->Finish());
  return loss_[0];
}

bool Compute::Ranks() const {
  const EvaluationMetrics::Kind kind = model_->metrics_kind();
  return kind == EvaluationMetrics::Kind::kRetrieval ||
         (kind == EvaluationMetrics::Kind::kMulticlass && model_->plan().outputs > EvaluationMetrics::kTopK);
}

EvaluationMetrics::Details Compute::DetailsOf(const Batch& batch) const {
  EvaluationMetrics::Details details;
  if (!batch.groups.empty()) details.groups = batch.groups.data();
  details.weights = batch.weights_or_null();
  details.classes = model_->OutputsOf(batch.size);
  if (Ranks()) details.logits = backend_->on_host() ? model_->logits() : logits_.data();
  return details;
}

}  // namespace lodestone::worker
