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
    : dense_tables_(plan.dense_tables.size()), backend_(backend), counting_(backend), features_(backend) {
  LODESTONE_CHECK(!plan.pooling.empty());
  for (size_t g = 0; g < plan.groups.count(); ++g) {
    std::vector<uint32_t> is_max;
    for (size_t i = 0; i < plan.FieldsIn(g); ++i) {
      const size_t field = plan.groups.count() == 1 ? i : plan.groups.fields[g][i];
      is_max.push_back(plan.pooling[field] == v1::MultiColumn::MAX);
    }
    const bool any_max = std::find(is_max.begin(), is_max.end(), 1u) != is_max.end();
    groups_.push_back(
        {is_max.size(), any_max, kernels::ScratchArray<uint32_t>(backend), kernels::ScratchArray<uint32_t>(backend)});
    Copied(std::move(is_max), &groups_.back().is_max);
  }
  for (const PlannedTable& table : plan.row_tables) {
    rows_.push_back(
        {table.dim, table.field_group, kernels::ScratchArray<float>(backend), kernels::ScratchArray<float>(backend)});
  }
}

uint32_t* PooledFields::Copied(std::vector<uint32_t> numbers, kernels::ScratchArray<uint32_t>* to) {
  const std::vector<uint32_t>& kept = copied_.emplace_back(std::move(numbers));
  uint32_t* const memory = to->Resize(kept.size());
  backend_->CopyIn(kernels::Queue::kCompute, kept.size() * sizeof(uint32_t), kept.data(), memory);
  return memory;
}

void PooledFields::Reserve(const BatchView& batch) {
  size_t count = 0;
  for (const BatchView::Group& group : batch.groups) count = std::max({count, group.sparse.samples, group.features});
  ++count;
  if (counting_.size() < count) {
    std::vector<uint32_t> numbers(std::bit_ceil(std::max(count, kIndicesMin)));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint32_t>(i);
    Copied(std::move(numbers), &counting_);
  }
  for (Group& group : groups_) {
    if (group.samples.size() >= batch.size + 1) continue;
    std::vector<uint32_t> numbers(std::bit_ceil(std::max(batch.size + 1, kIndicesMin)));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<uint32_t>(i * group.fields);
    Copied(std::move(numbers), &group.samples);
  }
}

void PooledFields::Forward(const BatchView& batch, const ParameterPointers& parameters) {
  Reserve(batch);
  parameters_ = parameters;
  for (size_t t = 0; t < rows_.size(); ++t) {
    Rows& rows = rows_[t];
    const Group& group = groups_[rows.group];
    const kernels::SparseBatch& sparse = batch.groups[rows.group].sparse;
    LODESTONE_CHECK(sparse.samples == batch.size * group.fields);
    const float* const from = parameters[dense_tables_ + t];
    const size_t n = sparse.samples * rows.dim;
    float* const pooled = rows.pooled.Resize(n);
    backend_->Fill(n, 0.0f, pooled);
    backend_->SparseLinear(sparse, rows.dim, {from, rows.dim}, pooled);
    if (group.any_max) backend_->MaxFields(sparse, group.fields, group.is_max.data(), rows.dim, from, pooled);
    parameters_[dense_tables_ + t] = pooled;
  }
  view_ = batch;  // With as many groups.
  for (size_t g = 0; g < groups_.size(); ++g) {
    const size_t pooled = batch.groups[g].sparse.samples;
    view_.groups[g] = {pooled, {batch.size, groups_[g].samples.data(), counting_.data(), nullptr, nullptr}, pooled};
  }
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
    const Group& group = groups_[rows.group];
    const BatchView::Group& of = batch.groups[rows.group];
    float* const to = gradients[dense_tables_ + t];
    if (!group.any_max) {
      backend_->SparseLinearBackward(of.sparse, rows.dim, rows.gradients.data(), {to, rows.dim});
      continue;
    }
    float* const features = features_.Resize(of.features * rows.dim);
    backend_->MaxFieldsBackward(of.sparse, group.fields, group.is_max.data(), rows.dim, parameters[dense_tables_ + t],
                                rows.pooled.data(), rows.gradients.data(), features);
    // Each feature by itself, in the batch's order if it has one.
    kernels::SparseBatch one_by_one = {of.features, counting_.data(), of.sparse.row, nullptr, nullptr};
    kernels::FeatureOrder order;
    if (of.sparse.order != nullptr) {
      order = *of.sparse.order;
      order.sample = order.feature;
      one_by_one.order = &order;
    }
    backend_->SparseLinearBackward(one_by_one, rows.dim, features, {to, rows.dim});
  }
}

}  // namespace lodestone::worker
