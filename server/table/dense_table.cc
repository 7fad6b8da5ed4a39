#include "server/table/dense_table.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::server {
namespace {

// The first block of `table` on `shard`; may be past the last.
BlockIndex FirstBlock(const Table& table, ShardId shard) {
  const ShardId start = ShardOfBlock(table.id(), 0, table.shards());
  return (shard + table.shards() - start) % table.shards();
}

size_t CountBlocks(const Table& table, BlockIndex first) {
  const BlockIndex blocks = table.layout().block_count();
  return first < blocks ? (blocks - first - 1) / table.shards() + 1 : 0;
}

// Updates all `n` values from a gradient in any runs.
void UpdateBlock(const Optimizer& optimizer, const Optimizer::Step& step, size_t n, ByteView gradient,
                 const float* values_in, const float* state_in, float* values_out, float* state_out) {
  size_t begin = 0;
  gradient.ForEachRun<float>([&](const uint8_t* run, size_t count) {
    optimizer.Update(step, {n, begin, count}, run, values_in, state_in, values_out, state_out);
    begin += count;
  });
}

}  // namespace

uint64_t DenseTable::ValueBytes(const Table& table, ShardId shard) {
  const BlockIndex first = FirstBlock(table, shard);
  const uint64_t blocks = CountBlocks(table, first);
  if (blocks == 0) return 0;
  const BlockIndex last = static_cast<BlockIndex>(first + (blocks - 1) * table.shards());
  return ((blocks - 1) * table.layout().block_elements + table.layout().ElementsOf(last)) * sizeof(float);
}

uint64_t DenseTable::BytesNeeded(const Table& table, ShardId shard) {
  const BlockIndex first = FirstBlock(table, shard);
  const uint64_t blocks = CountBlocks(table, first);
  if (blocks == 0) return 0;
  const auto block_bytes = [&table](uint64_t n) {
    const uint64_t state = table.state_layout().FloatsFor(n) * sizeof(float);
    return n * sizeof(float) + CountedBuffer::kAlignment + (state > 0 ? state + CountedBuffer::kAlignment : 0) +
           sizeof(Slot);
  };
  const BlockIndex last = static_cast<BlockIndex>(first + (blocks - 1) * table.shards());
  return (blocks - 1) * block_bytes(table.layout().block_elements) + block_bytes(table.layout().ElementsOf(last));
}

DenseTable::DenseTable(Table* table, ShardId shard)
    : table_(table),
      settings_(&table->made()),
      first_(FirstBlock(*table, shard)),
      slot_count_(CountBlocks(*table, first_)),
      slots_(std::make_unique<Slot[]>(slot_count_)) {
  Reset();
  table_->counters().blocks.fetch_add(slot_count_, std::memory_order_relaxed);
}

void DenseTable::Initialize(size_t i, Version version) {
  const BlockLayout& layout = table_->layout();
  const BlockIndex block = static_cast<BlockIndex>(first_ + i * table_->shards());
  const size_t n = layout.ElementsOf(block);
  Content content;
  content.values = BufferRef::NewKept(n * sizeof(float));
  table_->InitializeDense(uint64_t{block} * layout.block_elements, n, content.values->floats());
  const size_t state_floats = table_->state_layout().FloatsFor(n);
  if (state_floats > 0) {
    content.state = BufferRef::NewKept(state_floats * sizeof(float));
    settings_->optimizer->InitializeState(content.state->floats(), n);
  }
  Set(&slots_[i], std::move(content), version);
}

void DenseTable::Set(Slot* slot, Content content, Version version) {
  slot->state = std::move(content.state);
  slot->updates = content.updates;
  MutexLock lock(&slot->mu);
  slot->values = std::move(content.values);
  slot->version = version;
}

DenseTable::BlockValue DenseTable::Read(BlockIndex block) const {
  const Slot& slot = SlotOf(block);
  MutexLock lock(&slot.mu);
  return {slot.values, slot.version};
}

void DenseTable::Apply(BlockIndex block, ByteView gradient, Version version, uint64_t delay) {
  Slot& slot = SlotOf(block);
  const size_t n = table_->layout().ElementsOf(block);
  const Optimizer::Step step =
      settings_->StepFor(slot.updates++, gradient, settings_->spec.optimizer().clip().block_norm(), delay);
  float* const state = slot.state ? slot.state->floats() : nullptr;
  BufferRef fresh_state;
  if (slot.state && !slot.state.unique()) fresh_state = BufferRef::NewKept(slot.state->size_bytes());
  float* const state_out = fresh_state ? fresh_state->floats() : state;

  BufferRef shared;  // The values, if there is another reference to them.
  {
    MutexLock lock(&slot.mu);
    if (slot.values.unique()) {
      float* const values = slot.values->floats();
      UpdateBlock(*settings_->optimizer, step, n, gradient, values, state, values, state_out);
      slot.version = version;
    } else {
      shared = slot.values;
    }
  }
  if (shared) {
    BufferRef fresh = BufferRef::NewKept(shared->size_bytes());
    UpdateBlock(*settings_->optimizer, step, n, gradient, shared->floats(), state, fresh->floats(), state_out);
    MutexLock lock(&slot.mu);
    slot.values = std::move(fresh);
    slot.version = version;
  }
  if (fresh_state) slot.state = std::move(fresh_state);
}

std::vector<DenseTable::BlockState> DenseTable::Collect(const Version* after) const {
  std::vector<BlockState> blocks;
  for (size_t i = 0; i < slot_count_; ++i) {
    const Slot& slot = slots_[i];
    MutexLock lock(&slot.mu);
    if (after != nullptr && slot.version <= *after) continue;
    blocks.push_back(
        {static_cast<BlockIndex>(first_ + i * table_->shards()), slot.values, slot.state, slot.version, slot.updates});
  }
  return blocks;
}

absl::StatusOr<DenseTable::Content> DenseTable::ContentOf(const v1::DenseBlock& header,
                                                          std::span<const uint8_t> payload) const {
  const BlockIndex block = header.block();
  const auto error = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat("table `", table_->name(), "`, block ", block, ": ", what));
  };
  const BlockLayout& layout = table_->layout();
  if (block >= layout.block_count()) return error(absl::StrCat("the table has ", layout.block_count()));
  if (block % table_->shards() != first_ % table_->shards()) return error("is of another shard");
  const size_t n = layout.ElementsOf(block);
  const size_t state_floats = table_->state_layout().FloatsFor(n);
  if (header.values() != n || header.state() != state_floats) {
    return error(absl::StrCat("has ", header.values(), " values and ", header.state(), " floats of state, not ", n,
                              " and ", state_floats));
  }
  if (payload.size() != (n + state_floats) * sizeof(float)) {
    return error(absl::StrCat("has ", payload.size(), " bytes, not ", (n + state_floats) * sizeof(float)));
  }
  Content content;
  content.values = BufferRef::NewKept(n * sizeof(float));
  std::memcpy(content.values->bytes(), payload.data(), n * sizeof(float));
  if (state_floats > 0) {
    content.state = BufferRef::NewKept(state_floats * sizeof(float));
    std::memcpy(content.state->bytes(), payload.data() + n * sizeof(float), state_floats * sizeof(float));
  }
  content.updates = header.updates();
  return content;
}

absl::Status DenseTable::Restore(const v1::DenseBlock& header, std::span<const uint8_t> payload) {
  LODESTONE_ASSIGN_OR_RETURN(Content content, ContentOf(header, payload));
  Set(&SlotOf(header.block()), std::move(content), header.version());
  return absl::OkStatus();
}

absl::Status DenseTable::Stage(const v1::DenseBlock& header, std::span<const uint8_t> payload) {
  LODESTONE_ASSIGN_OR_RETURN(Content content, ContentOf(header, payload));
  if (staged_.try_emplace(header.block(), std::move(content)).second) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("table `", table_->name(), "`, block ", header.block(), ": is there twice"));
}

void DenseTable::CommitStaged(Version version) {
  for (size_t i = 0; i < slot_count_; ++i) {
    const auto staged = staged_.find(static_cast<BlockIndex>(first_ + i * table_->shards()));
    if (staged == staged_.end()) {
      Initialize(i, version);
    } else {
      Set(&slots_[i], std::move(staged->second), version);
    }
  }
  staged_.clear();
}

absl::Status DenseTable::CheckNoneAfter(Version version) const {
  for (size_t i = 0; i < slot_count_; ++i) {
    const Slot& slot = slots_[i];
    MutexLock lock(&slot.mu);
    if (slot.version <= version) continue;
    return absl::InvalidArgumentError(absl::StrCat("table `", table_->name(), "`, block ",
                                                   first_ + i * table_->shards(), ": is of version ", slot.version,
                                                   ", the shard of ", version));
  }
  return absl::OkStatus();
}

void DenseTable::Free() {
  if (slot_count_ == 0 || freed_) return;
  const size_t floats = table_->layout().ElementsOf(first_);  // No block has more.
  const BufferRef zeros = BufferRef::NewKept(floats * sizeof(float));
  std::fill_n(zeros->floats(), floats, 0.0f);
  for (size_t i = 0; i < slot_count_; ++i) Set(&slots_[i], {zeros, BufferRef(), 0}, 0);
  table_->counters().blocks.fetch_sub(slot_count_, std::memory_order_relaxed);
  freed_ = true;
}

void DenseTable::Reset() {
  if (std::exchange(freed_, false)) table_->counters().blocks.fetch_add(slot_count_, std::memory_order_relaxed);
  for (size_t i = 0; i < slot_count_; ++i) Initialize(i, 0);
}

}  // namespace lodestone::server
