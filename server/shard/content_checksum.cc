#include "server/shard/content_checksum.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "common/base/check.h"
#include "common/base/hash.h"

namespace lodestone::server {
namespace {

// What a hash is of, so that no part can stand for another.
enum class Kind : uint64_t {
  kVersion = 1,
  kBlock,
  kBlockState,
  kTable,
  kRow,
  kCandidate,
  kWindow,
  kSteps,
  kContribution
};

uint64_t HashOf(Kind kind, std::initializer_list<uint64_t> numbers, std::string_view bytes = {}) {
  uint64_t hash = Mix64(static_cast<uint64_t>(kind));
  for (const uint64_t number : numbers) hash = Mix64(hash ^ number);
  return StableHash(bytes, hash);
}

std::string_view BytesOf(const BufferRef& buffer) {
  return {reinterpret_cast<const char*>(buffer->bytes()), buffer->size_bytes()};
}

uint64_t SumOfRows(const Shard::State::RowsPart& part) {
  const PageLayout& layout = part.layout;
  const TableId table = part.table->id();
  uint64_t sum = HashOf(Kind::kTable, {table, part.content.updates});
  for (const EmbeddingTable::State::Page& page : part.content.pages) {
    for (uint32_t i = 0; i < layout.rows(); ++i) {
      const uint32_t changed = layout.Changed(page.page)[i];
      if (changed == 0) continue;
      const auto* const row = reinterpret_cast<const char*>(layout.Row(page.page, i));
      sum += HashOf(Kind::kRow, {table, layout.Keys(page.page)[i], changed}, {row, layout.row_floats * sizeof(float)});
    }
  }
  for (const auto& [key, count] : part.content.candidates) sum += HashOf(Kind::kCandidate, {table, key, count});
  return sum;
}

uint64_t SumOfSteps(const Shard::State::Steps& steps) {
  const TableId table = steps.header.table();
  uint64_t sum = HashOf(Kind::kSteps, {table, steps.header.steps(), steps.header.closed_ms()});
  for (const v1::TableSteps::PartialStep& partial : steps.header.partial()) {
    for (const uint32_t batch : partial.batches()) sum += HashOf(Kind::kSteps, {table, partial.step(), batch, 1});
  }
  const auto bytes = [](const auto& values) {
    return std::string_view(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  };
  uint64_t place = 0;  // What waits does so in order.
  for (const auto& one : steps.pending) {
    const uint64_t of_contents = StableHash(bytes(one->keys), StableHash(bytes(one->blocks)));
    sum += HashOf(Kind::kContribution,
                  {table, place++, one->step, one->batch, one->samples, one->now_ms, one->takes_new, of_contents},
                  bytes(one->gradients));
  }
  return sum;
}

}  // namespace

uint64_t ValuesChecksum(const Shard::State& state) {
  LODESTONE_CHECK(!state.after.has_value());
  // A sum, so that the order of the parts does not matter.
  uint64_t sum = HashOf(Kind::kVersion, {state.shard, state.version});
  for (const Shard::Snapshot::DensePart& part : state.dense) {
    for (const DenseTable::BlockState& block : part.blocks) {
      sum += HashOf(Kind::kBlock, {part.table->id(), block.block, block.version, block.updates}, BytesOf(block.values));
      if (block.state) sum += HashOf(Kind::kBlockState, {part.table->id(), block.block}, BytesOf(block.state));
    }
  }
  for (const Shard::State::RowsPart& part : state.rows) sum += SumOfRows(part);
  for (const Shard::State::Steps& steps : state.steps) sum += SumOfSteps(steps);
  return sum;
}

uint64_t WindowsChecksum(const Shard::State& state, const std::vector<Incarnation>* workers) {
  uint64_t sum = 0;
  for (const auto& [worker, window] : state.windows) {
    if (workers != nullptr && !std::binary_search(workers->begin(), workers->end(), worker)) continue;
    sum += HashOf(Kind::kWindow, {worker, window.newest()}, window.AppliedBits());
  }
  return sum;
}

}  // namespace lodestone::server
