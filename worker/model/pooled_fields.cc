#include "worker/model/pooled_fields.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/base/check.h"

namespace lodestone::worker {
namespace {

// Index arrays begin so long and double, so that what was copied to make them stays little.
constexpr size_t kIndicesMin = 1024;

}  // namespace

PooledFields::PooledFields(const ModelPlan& plan, kernels::Backend* backend)
    : fields_(plan.pooling.size()),
      dense_tables_(plan.dense_tables.size()),
      backend_(backend),
      is_max_(backend),
      counting_(backend),
      samples_(backend),
      features_(backend) {
  LODESTONE_CHECK(fields_ > 0);
  std::vector<uint32_t> is_max;
  for (const auto pooling : plan.pooling) is_max.push_back(pooling == v1::MultiColumn::MAX);
  any_max_ = std::find(is_max.begin(), is_max.end(), 1u) != is_max.end();
  Copied(std::move(is_max), &is_max_);
  for (const PlannedTable& table : plan.row_tables) {
    rows_.push_back({table.dim, kernels::ScratchArray<float>(backend), kernels::ScratchArray<float>(backend)});
  }
}

uint32_t* PooledFields::Copied(std::vector<uint32_t> numbers, kernels::ScratchArray<uint32_t>* to) {
  const std::vector<uint32_t>& kept = copied_.emplace_back(std::move(numbers));
  uint32_t* const memory = to->Resize(kept.size());
  backend_->CopyIn(kernels::Queue::kCompute, kept.size() * sizeof(uint32_t), kept.data(), memory);
  return memory;
}

void PooledFields::Reserve(size_t samples, size_t features) {
  const size_t count = std::max(samples * fields_, features) + 1;
  if (counting_.size() < count) {
    std::vector<uint32_t> numbers(std::bit_ceil(std::max(count, kIndicesMin)));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint32_t>(i);
    Copied(std::move(numbers), &counting_);
  }
  if (samples_.size() < samples + 1) {
    std::vector<uint32_t> numbers(std::bit_ceil(std::max(samples + 1, kIndicesMin)));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint32_t>(i * fields_);
    Copied(std::move(numbers), &samples_);
  }
}

void PooledFields::Forward(const BatchView& batch, const ParameterPointers& parameters) {
  LODESTONE_CHECK(batch.sparse.samples == batch.size * fields_);
  Reserve(batch.size, batch.features);
  parameters_ = parameters;
  for (size_t t = 0; t < rows_.size(); ++t) {
    Rows& rows = rows_[t];
    const float* const from = parameters[dense_tables_ + t];
    const size_t n = batch.sparse.samples * rows.dim;
    float* const pooled = rows.pooled.Resize(n);
    backend_->Fill(n, 0.0f, pooled);
    backend_->SparseLinear(batch.sparse, rows.dim, {from, rows.dim}, pooled);
    if (any_max_) backend_->MaxFields(batch.sparse, fields_, is_max_.data(), rows.dim, from, pooled);
    parameters_[dense_tables_ + t] = pooled;
  }
  view_ = batch;
  view_.keys = view_.features = batch.sparse.samples;
  view_.sparse = {batch.size, samples_.data(), counting_.data(), nullptr, nullptr};
}

const GradientPointers& PooledFields::StartBackward(const GradientPointers& gradients) {
  gradients_ = gradients;
  for (size_t t = 0; t < rows_.size(); ++t) {
    const size_t n = rows_[t].pooled.size();
    backend_->Fill(n, 0.0f, rows_[t].gradients.Resize(n));
    gradients_[dense_tables_ + t] = rows_[t].gradients.data();
  }
  return gradients_;
}

void PooledFields::Backward(const BatchView& batch, const ParameterPointers& parameters,
                            const GradientPointers& gradients) {
  for (size_t t = 0; t < rows_.size(); ++t) {
    Rows& rows = rows_[t];
    float* const to = gradients[dense_tables_ + t];
    if (!any_max_) {
      backend_->SparseLinearBackward(batch.sparse, rows.dim, rows.gradients.data(), {to, rows.dim});
      continue;
    }
    float* const features = features_.Resize(batch.features * rows.dim);
    backend_->MaxFieldsBackward(batch.sparse, fields_, is_max_.data(), rows.dim, parameters[dense_tables_ + t],
                                rows.pooled.data(), rows.gradients.data(), features);
    // Each feature by itself, in the batch's order if it has one.
    kernels::SparseBatch one_by_one = {batch.features, counting_.data(), batch.sparse.row, nullptr, nullptr};
    kernels::FeatureOrder order;
    if (batch.sparse.order != nullptr) {
      order = *batch.sparse.order;
      order.sample = order.feature;
      one_by_one.order = &order;
    }
    backend_->SparseLinearBackward(one_by_one, rows.dim, features, {to, rows.dim});
  }
}

}  // namespace lodestone::worker
