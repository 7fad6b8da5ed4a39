#include "worker/model/device_batch.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace lodestone::worker {
namespace {

// Arrays start on boundaries of 256 bytes, as device memory itself does.
constexpr size_t kAlignmentWords = 64;

}  // namespace

DeviceBatch::DeviceBatch(kernels::Backend* backend, bool ordered, size_t groups, size_t row_tables)
    : backend_(backend),
      ordered_(ordered),
      mark_(backend->NewMark()),
      order_arrays_(groups),
      orders_(groups),
      packed_(backend, kernels::Memory::kHost),
      words_(backend) {
  for (size_t t = 0; t < row_tables; ++t) rows_.emplace_back(backend);
}

size_t DeviceBatch::Add(const void* data, size_t words) {
  const size_t at = pieces_.size();
  pieces_.resize((at + words + kAlignmentWords - 1) / kAlignmentWords * kAlignmentWords);
  if (words > 0) std::memcpy(pieces_.data() + at, data, words * sizeof(uint32_t));
  return at;
}

DeviceBatch::GroupPlaces DeviceBatch::AddGroup(const KeyedBatch& keyed, size_t group) {
  const std::vector<uint32_t>&offsets = keyed.OffsetsOf(group), &row = keyed.groups[group].row;
  const std::vector<float>& values = keyed.ValuesOf(group);
  GroupPlaces at;
  at.offsets = Add(offsets.data(), offsets.size());
  at.row = Add(row.data(), row.size());
  at.values = Add(values.data(), values.size());
  if (!ordered_) return at;
  order_arrays_[group].Fill(keyed.SparseOf(group), keyed.KeysOf(group).size());
  const kernels::FeatureOrder order = order_arrays_[group].View();
  at.feature = Add(order.feature, row.size());
  at.sample = Add(order.sample, row.size());
  at.chunk_begin = Add(order.chunk_begin, order.chunks + 1);
  at.chunk_row = Add(order.chunk_row, order.chunks);
  at.first_chunk = Add(order.first_chunk, order.long_rows);
  at.end_chunk = Add(order.end_chunk, order.long_rows);
  return at;
}

BatchView::Group DeviceBatch::ViewOf(const KeyedBatch& keyed, size_t group, const GroupPlaces& at) {
  if (ordered_) {
    const kernels::FeatureOrder host = order_arrays_[group].View();
    orders_[group] = {host.chunks,
                      At<uint32_t>(at.feature),
                      At<uint32_t>(at.sample),
                      At<uint32_t>(at.chunk_begin),
                      At<uint32_t>(at.chunk_row),
                      host.long_rows,
                      At<uint32_t>(at.first_chunk),
                      At<uint32_t>(at.end_chunk)};
  }
  return {keyed.KeysOf(group).size(),
          {keyed.SparseOf(group).samples, At<uint32_t>(at.offsets), At<uint32_t>(at.row),
           keyed.ValuesOf(group).empty() ? nullptr : At<float>(at.values), ordered_ ? &orders_[group] : nullptr},
          keyed.groups[group].row.size()};
}

void DeviceBatch::Pack(const KeyedBatch& keyed, std::span<const size_t> row_floats) {
  LODESTONE_CHECK(row_floats.size() == rows_.size() && keyed.groups.size() == orders_.size());
  const Batch& batch = keyed.batch;
  pieces_.clear();
  const size_t labels = Add(batch.labels.data(), batch.labels.size());
  const size_t numeric = Add(batch.numeric.data(), batch.numeric.size());
  const size_t weights = Add(batch.weights.data(), batch.weights.size());
  const size_t candidates = Add(batch.candidates.data(), batch.candidates.size());
  const size_t label_weights = Add(batch.label_weights.data(), batch.label_weights.size());
  std::vector<GroupPlaces> groups;
  for (size_t g = 0; g < keyed.groups.size(); ++g) groups.push_back(AddGroup(keyed, g));
  packed_.Resize(pieces_.size());
  words_.Resize(pieces_.size());
  for (size_t t = 0; t < rows_.size(); ++t) rows_[t].Resize(row_floats[t]);
  view_ = {};
  view_.groups.resize(groups.size());
  if (packed_.data() == nullptr || words_.data() == nullptr) return;  // See view().
  std::copy(pieces_.begin(), pieces_.end(), packed_.data());
  view_.size = batch.size;
  for (size_t g = 0; g < groups.size(); ++g) view_.groups[g] = ViewOf(keyed, g, groups[g]);
  view_.numeric = At<float>(numeric);
  view_.labels = At<float>(labels);
  view_.weights = batch.weights.empty() ? nullptr : At<float>(weights);
  view_.candidates = batch.candidates.empty() ? nullptr : At<float>(candidates);
  view_.label_weights = batch.label_weights.empty() ? nullptr : At<float>(label_weights);
}

void DeviceBatch::Upload(std::span<const kernels::ScratchArray<float>> rows) {
  using kernels::Queue;
  backend_->CopyIn(Queue::kCopy, packed_.size() * sizeof(uint32_t), packed_.data(), words_.data());
  for (size_t t = 0; t < rows_.size(); ++t) {
    backend_->CopyIn(Queue::kCopy, rows[t].size() * sizeof(float), rows[t].data(), rows_[t].data());
  }
  backend_->SetMark(Queue::kCopy, mark_);
}

void DeviceBatch::Await() { backend_->AwaitMark(mark_); }

}  // namespace lodestone::worker
