// The numbers of pushes: made, and divided.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/telemetry/copy_counter.h"
#include "worker/client/pusher.h"

namespace lodestone::worker {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers travel as they lie in memory");

// Copies `count` numbers; returns where the next go.
template <typename T>
uint8_t* CopyNumbers(const T* from, size_t count, uint8_t* to) {
  std::memcpy(to, from, count * sizeof(T));
  return to + count * sizeof(T);
}

// Builds values from copies, of which adjacent ones share a slice, and references.
class ValueBuilder {
 public:
  // `copied_bytes`: of all that Copy will be given.
  explicit ValueBuilder(size_t copied_bytes)
      : buffer_(copied_bytes == 0 ? nullptr : std::shared_ptr<uint8_t[]>(new uint8_t[copied_bytes])),
        from_(buffer_.get()),
        at_(from_) {}

  void Copy(const float* numbers, size_t count) { at_ = CopyNumbers(numbers, count, at_); }

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
    slices_.emplace_back(
        const_cast<void*>(bytes), size, [](void* kept) { delete static_cast<std::shared_ptr<void>*>(kept); },
        new std::shared_ptr<void>(owner));
  }

  const std::shared_ptr<uint8_t[]> buffer_;
  uint8_t* from_;  // Of what is not in a slice yet.
  uint8_t* at_;
  std::vector<grpc::Slice> slices_;
};

}  // namespace

CallNumbers PushNumbers(const RoutedMessage& message, std::span<const DenseGradient> dense,
                        std::span<const RowGradients> rows, std::shared_ptr<void> release, const PullRider* rider) {
  CallNumbers numbers;
  size_t copied = 0;
  size_t key_bytes = 0;
  numbers.parts.reserve(message.parts.size());
  for (const RoutedPart& part : message.parts) {
    const CallNumbers::Part bytes{part.dense ? 0 : part.items.size() * sizeof(Key), ValueCount(part) * sizeof(float)};
    numbers.parts.push_back(bytes);
    key_bytes += bytes.key_bytes;
    if (!part.dense || !dense[part.source].borrowed) copied += bytes.value_bytes;
  }
  if (rider != nullptr) {
    numbers.parts.insert(numbers.parts.end(), rider->parts.begin(), rider->parts.end());
    for (const CallNumbers::Part& part : rider->parts) key_bytes += part.key_bytes;
    numbers.answer_bytes = rider->answer_bytes;
  }
  CountCopied(key_bytes + copied);
  const auto copy_keys = [&](uint8_t* to) {
    for (const RoutedPart& part : message.parts) {
      if (part.dense) continue;
      const std::span<const Key> keys = rows[part.source].keys;
      for (uint32_t row : part.items) to = CopyNumbers(&keys[row], 1, to);
    }
    if (rider != nullptr) rider->copy_keys(to);
  };
  SetKeys(key_bytes, copy_keys, &numbers);
  ValueBuilder values(copied);
  for (const RoutedPart& part : message.parts) {
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
      const float* const from = rows[part.source].values;
      const size_t dim = part.table->dim;
      for (uint32_t row : part.items) values.Copy(from + row * dim, dim);
    }
  }
  numbers.values = values.Finish();
  return numbers;
}

void DropPull(Caller::Message* message) {
  v1::PushRequest push = std::move(*message->call.mutable_push_pull()->mutable_push());
  *message->call.mutable_push() = std::move(push);
  CallNumbers& numbers = message->numbers;
  numbers.parts.resize(message->call.push().parts_size());
  numbers.answer_bytes = 0;
  size_t key_bytes = 0;
  for (const CallNumbers::Part& part : numbers.parts) key_bytes += part.key_bytes;
  if (key_bytes == numbers.keys.size()) return;
  const grpc::Slice keys = std::exchange(numbers.keys, grpc::Slice());
  numbers.list = {};
  SetKeys(
      key_bytes, [&](uint8_t* to) { CopyNumbers(keys.begin(), key_bytes, to); }, &numbers);
}

std::vector<SplitPush> Split(const ShardMap& map, Caller::Message message) {
  std::vector<SplitPush> splits;
  const CallNumbers& numbers = message.numbers;
  std::vector<std::vector<std::pair<size_t, size_t>>> keys;  // Of each split: where they are in `numbers`, and bytes.
  size_t keys_at = 0;
  size_t at = 0;
  size_t offset = 0;
  v1::PushRequest& push = *message.call.mutable_push();
  for (int i = 0; i < push.parts_size(); ++i) {
    const uint32_t owner = map.OwnerOf(push.parts(i).shard());
    auto split = std::find_if(splits.begin(), splits.end(), [&](const SplitPush& of) { return of.server == owner; });
    if (split == splits.end()) {
      Caller::Message piece{{}, {}, message.what, map.epoch(), message.started_ms, message.turned_back};
      v1::PushRequest& request = *piece.call.mutable_push();
      request.set_worker_incarnation(push.worker_incarnation());
      request.set_sequence(push.sequence());
      request.set_clock(push.clock());
      split = splits.insert(splits.end(), SplitPush{owner, std::move(piece)});
      keys.emplace_back();
    }
    split->message.call.mutable_push()->add_parts()->Swap(push.mutable_parts(i));
    const CallNumbers::Part& part = numbers.parts[i];
    CallNumbers& to = split->message.numbers;
    to.parts.push_back(part);
    TakeSlices(part.value_bytes, numbers.values, &at, &offset, &to.values);
    if (part.key_bytes > 0) keys[split - splits.begin()].emplace_back(keys_at, part.key_bytes);
    keys_at += part.key_bytes;
  }
  for (size_t s = 0; s < splits.size(); ++s) {
    size_t bytes = 0;
    for (const auto& [from, size] : keys[s]) bytes += size;
    const auto copy_keys = [&](uint8_t* to) {
      for (const auto& [from, size] : keys[s]) to = CopyNumbers(numbers.keys.begin() + from, size, to);
    };
    SetKeys(bytes, copy_keys, &splits[s].message.numbers);
  }
  return splits;
}

}  // namespace lodestone::worker
