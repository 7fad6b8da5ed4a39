#include "worker/client/push_payload.h"

#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/row_copy.h"
#include "common/telemetry/copied_bytes.h"
#include "common/wire/owned_slice.h"

namespace lodestone::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "keys and values are sent as they lie in memory");

// Copies `count` numbers; returns where the next go.
template <typename T>
uint8_t* CopyNumbers(const T* from, size_t count, uint8_t* to) {
  std::memcpy(to, from, count * sizeof(T));
  return to + count * sizeof(T);
}

// The slices of values: copies, of which adjacent ones share a slice, and references.
class ValueBuilder {
 public:
  // `copied_bytes`: of all that Copy will be given.
  explicit ValueBuilder(size_t copied_bytes)
      : buffer_(copied_bytes == 0 ? nullptr : std::shared_ptr<uint8_t[]>(new uint8_t[copied_bytes])),
        from_(buffer_.get()),
        at_(from_) {}

  void Copy(const float* numbers, size_t count) { at_ = CopyNumbers(numbers, count, at_); }
  // Of `dim` floats each, in the order of `items`.
  void CopyRows(const float* rows, size_t dim, std::span<const uint32_t> items) {
    const auto prefetch = [&](size_t i) {
      if (i < items.size()) PrefetchRow(rows + uint64_t{items[i]} * dim, dim * sizeof(float));
    };
    for (size_t i = 0; i < kRowsAhead; ++i) prefetch(i);
    for (size_t i = 0; i < items.size(); ++i) {
      prefetch(i + kRowsAhead);
      CopyRow(rows + uint64_t{items[i]} * dim, dim, at_);
      at_ += dim * sizeof(float);
    }
  }

  // `owner` is kept as long as the slice lives.
  void Refer(const float* numbers, size_t count, const std::shared_ptr<void>& owner) {
    Cut();
    Add(numbers, count * sizeof(float), owner);
  }

  std::vector<grpc::Slice> Finish() {
    Cut();
    return std::move(slices_);
  }

 private:
  void Cut() {
    if (at_ != from_) Add(from_, at_ - from_, buffer_);
    from_ = at_;
  }
  void Add(const void* bytes, size_t size, const std::shared_ptr<void>& owner) {
    slices_.push_back(OwnedSlice(bytes, size, owner));
  }

  const std::shared_ptr<uint8_t[]> buffer_;
  uint8_t* from_;  // Of what is not in a slice yet.
  uint8_t* at_;
  std::vector<grpc::Slice> slices_;
};

std::vector<grpc::Slice> PackValues(const ShardMessage& message, std::span<const DenseGradient> dense,
                                    std::span<const RowGradients> rows, const std::shared_ptr<void>& release,
                                    size_t copied_bytes) {
  ValueBuilder values(copied_bytes);
  for (const ShardMessage::Part& part : message.parts) {
    if (part.dense) {
      const BlockLayout& layout = part.table->layout;
      const DenseGradient& gradient = dense[part.source];
      for (BlockIndex block : part.items) {
        const float* from = gradient.values + uint64_t{block} * layout.block_elements;
        if (gradient.borrowed) {
          values.Refer(from, layout.ElementsOf(block), release);
        } else {
          values.Copy(from, layout.ElementsOf(block));
        }
      }
    } else {
      values.CopyRows(rows[part.source].values, part.table->dim, part.items);
    }
  }
  return values.Finish();
}

}  // namespace

CallPayload MakePushPayload(const ShardMessage& message, std::span<const DenseGradient> dense,
                            std::span<const RowGradients> rows, const std::shared_ptr<void>& release,
                            const PullRider* rider) {
  CallPayload payload;
  size_t copied = 0;
  size_t key_bytes = 0;
  for (size_t begin = 0, length = 0; begin < message.parts.size(); begin += length) {
    length = RunLength(message.parts, begin);
    CallPayload::PartSizes& sizes = payload.parts.emplace_back();
    for (const ShardMessage::Part& part : std::span(message.parts).subspan(begin, length)) {
      const uint64_t value_bytes = part.ValueCount() * sizeof(float);
      sizes.value_bytes += value_bytes;
      if (!part.dense) sizes.key_bytes += part.items.size() * sizeof(Key);
      if (!part.dense || !dense[part.source].borrowed) copied += value_bytes;
    }
    key_bytes += sizes.key_bytes;
  }
  if (rider != nullptr) key_bytes += rider->values->AddSizes(rider->message, &payload);
  copied_bytes_metric.Add(key_bytes + copied);
  const auto copy_keys = [&](uint8_t* to) {
    for (const ShardMessage::Part& part : message.parts) {
      if (part.dense) continue;
      const std::span<const Key> keys = rows[part.source].keys;
      for (uint32_t row : part.items) to = CopyNumbers(&keys[row], 1, to);
    }
    if (rider != nullptr) rider->values->CopyKeys(rider->message, to);
  };
  SetKeys(key_bytes, copy_keys, &payload);
  payload.values = PackValues(message, dense, rows, release, copied);
  return payload;
}

}  // namespace lodestone::worker
