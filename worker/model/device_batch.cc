#include "worker/model/device_batch.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace lodestone::worker {
namespace {

// Arrays start on boundaries of 256 bytes, as device memory itself does.
constexpr size_t kAlignmentWords = 64;

}  // namespace

DeviceBatch::DeviceBatch(kernels::Backend* backend, bool ordered, size_t row_tables)
    : backend_(backend),
      ordered_(ordered),
      mark_(backend->NewMark()),
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

void DeviceBatch::Pack(const KeyedBatch& keyed, std::span<const size_t> row_floats) {
  LODESTONE_CHECK(row_floats.size() == rows_.size());
  const Batch& batch = keyed.batch;
  pieces_.clear();
  const size_t labels = Add(batch.labels.data(), batch.labels.size());
  const size_t numeric = Add(batch.numeric.data(), batch.numeric.size());
  const size_t offsets = Add(batch.offsets.data(), batch.offsets.size());
  const size_t row = Add(keyed.row.data(), keyed.row.size());
  const size_t values = Add(batch.values.data(), batch.values.size());
  const size_t weights = Add(batch.weights.data(), batch.weights.size());
  const size_t candidates = Add(batch.candidates.data(), batch.candidates.size());
  const size_t label_weights = Add(batch.label_weights.data(), batch.label_weights.size());
  kernels::FeatureOrder order;
  size_t feature = 0, sample = 0, chunk_begin = 0, chunk_row = 0, first_chunk = 0, end_chunk = 0;
  if (ordered_) {
    order_arrays_.Fill(keyed.sparse(), keyed.keys.size());
    order = order_arrays_.View();
    feature = Add(order.feature, keyed.row.size());
    sample = Add(order.sample, keyed.row.size());
    chunk_begin = Add(order.chunk_begin, order.chunks + 1);
    chunk_row = Add(order.chunk_row, order.chunks);
    first_chunk = Add(order.first_chunk, order.long_rows);
    end_chunk = Add(order.end_chunk, order.long_rows);
  }
  packed_.Resize(pieces_.size());
  words_.Resize(pieces_.size());
  for (size_t t = 0; t < rows_.size(); ++t) rows_[t].Resize(row_floats[t]);
  if (packed_.data() == nullptr || words_.data() == nullptr) return;  // The backend has failed and says so at Finish.
  std::copy(pieces_.begin(), pieces_.end(), packed_.data());
  order_ = {order.chunks,
            At<uint32_t>(feature),
            At<uint32_t>(sample),
            At<uint32_t>(chunk_begin),
            At<uint32_t>(chunk_row),
            order.long_rows,
            At<uint32_t>(first_chunk),
            At<uint32_t>(end_chunk)};
  view_ = {batch.size,
           keyed.keys.size(),
           {keyed.sparse().samples, At<uint32_t>(offsets), At<uint32_t>(row),
            batch.values.empty() ? nullptr : At<float>(values), ordered_ ? &order_ : nullptr},
           At<float>(numeric),
           At<float>(labels),
           keyed.row.size(),
           batch.weights.empty() ? nullptr : At<float>(weights),
           batch.candidates.empty() ? nullptr : At<float>(candidates),
           batch.label_weights.empty() ? nullptr : At<float>(label_weights)};
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
