#include "worker/client/pull_values.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/row_copy.h"
#include "common/base/status.h"
#include "common/telemetry/copied_bytes.h"
#include "worker/client/payload_metrics.h"

namespace lodestone::worker {
namespace {

// INTERNAL if `part` of an answer does not match `asked`.
absl::Status CheckPart(const v1::Part& part, const ShardMessage::Part& asked) {
  const auto wrong = [&](const auto&... what) {
    return absl::InternalError(
        absl::StrCat("table ", asked.table->spec.name(), ", shard ", asked.shard, ": ", what...));
  };
  if (part.shard() != asked.shard || part.table() != asked.table->id) {
    return wrong("the answer has table id ", part.table(), ", shard ", part.shard(), " in its place");
  }
  const size_t blocks = asked.dense ? asked.items.size() : 0;
  const size_t rows = asked.dense ? 0 : asked.items.size();
  if (part.row_count() != rows) return wrong("the answer has ", part.row_count(), " rows, asked were ", rows);
  if (part.blocks_size() != blocks || part.block_versions_size() != blocks) {
    return wrong("the answer has ", part.blocks_size(), " blocks and ", part.block_versions_size(),
                 " block versions, asked were ", blocks);
  }
  for (size_t i = 0; i < blocks; ++i) {
    if (part.blocks(i) != asked.items[i]) {
      return wrong("the answer has block ", part.blocks(i), " in the place of block ", asked.items[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAnswer(const v1::PullResponse& response, const Payload& payload, const ShardMessage& message) {
  const auto parts = static_cast<int>(message.parts.size());
  const bool brief = response.parts_size() == 0;
  if ((!brief && response.parts_size() != parts) || response.shard_versions_size() != parts) {
    return absl::InternalError(absl::StrCat("the answer has ", response.parts_size(), " parts and ",
                                            response.shard_versions_size(), " shard versions, asked were ", parts,
                                            " parts"));
  }
  if (response.steps_size() != 0 && response.steps_size() != parts) {
    return absl::InternalError(
        absl::StrCat("the answer has the steps of ", response.steps_size(), " parts, and ", parts, " parts"));
  }
  size_t size = 0;
  for (int i = 0; i < parts; ++i) {
    if (!brief) LODESTONE_RETURN_IF_ERROR(CheckPart(response.parts(i), message.parts[i]));
    size += message.parts[i].ValueCount() * sizeof(float);
  }
  if (payload.size() != size) {
    return absl::InternalError(
        absl::StrCat("the answer's payload has ", payload.size(), " bytes, expected were ", size));
  }
  return absl::OkStatus();
}

// Copy a part's values, which they take from the front of `from`, to where they belong.
void ScatterBlocks(const ShardMessage::Part& part, ByteView* from, float* dst) {
  const BlockLayout& layout = part.table->layout;
  for (const BlockIndex block : part.items) {
    from->Take(sizeof(float) * layout.ElementsOf(block)).CopyTo(dst + uint64_t{block} * layout.block_elements);
  }
}

void ScatterRows(const ShardMessage::Part& part, ByteView* from, float* dst) {
  const std::span<const uint32_t> items = part.items;
  const size_t dim = part.table->dim;
  const size_t row_bytes = dim * sizeof(float);
  const auto to = [&](size_t i) { return dst + uint64_t{items[i]} * dim; };
  const auto prefetch = [&](size_t i) {
    if (i < items.size()) PrefetchRow<RowUse::kWrite>(to(i), row_bytes);
  };
  for (size_t i = 0; i < kRowsAhead; ++i) prefetch(i);
  for (size_t i = 0; i < items.size();) {
    const ByteView::Run run = from->front();
    const size_t whole = std::min(items.size() - i, run.size / row_bytes);
    if (whole == 0) {  // A row that lies in several runs.
      from->Take(row_bytes).CopyTo(to(i));
      ++i;
      continue;
    }
    from->Take(whole * row_bytes);
    for (size_t row = 0; row < whole; ++row, ++i) {
      prefetch(i + kRowsAhead);
      CopyRow(run.data + row * row_bytes, dim, to(i));
    }
  }
}

}  // namespace

absl::StatusOr<std::vector<ShardMessage>> PullValues::Route(const RequestRouter& router) {
  LODESTONE_ASSIGN_OR_RETURN(Routing routing, router.RoutePull(dense_, rows_));
  orders_ = std::move(routing.orders);
  messages_ = routing.messages.size();
  return std::move(routing.messages);
}

CallPayload PullValues::MakePayload(const ShardMessage& message) const {
  CallPayload payload;
  const size_t key_bytes = AddSizes(message, &payload);
  SetKeys(
      key_bytes, [&](uint8_t* to) { CopyKeys(message, to); }, &payload);
  return payload;
}

size_t PullValues::AddSizes(const ShardMessage& message, CallPayload* payload) const {
  size_t key_bytes = 0;
  for (size_t begin = 0, length = 0; begin < message.parts.size(); begin += length) {
    length = RunLength(message.parts, begin);
    CallPayload::PartSizes& sizes = payload->parts.emplace_back();
    for (const ShardMessage::Part& part : std::span(message.parts).subspan(begin, length)) {
      if (!part.dense) sizes.key_bytes += part.items.size() * sizeof(Key);
      payload->answer_bytes += part.ValueCount() * sizeof(float);
    }
    key_bytes += sizes.key_bytes;
  }
  return key_bytes;
}

void PullValues::CopyKeys(const ShardMessage& message, uint8_t* to) const {
  for (const ShardMessage::Part& part : message.parts) {
    if (part.dense) continue;
    const std::span<const Key> keys = rows_[part.source].keys;
    for (uint32_t row : part.items) {
      std::memcpy(to, &keys[row], sizeof(Key));
      to += sizeof(Key);
    }
  }
}

absl::Status PullValues::Take(const v1::PullResponse& response, const Payload& payload, const ShardMessage& message) {
  LODESTONE_RETURN_IF_ERROR(CheckAnswer(response, payload, message));
  copied_bytes_metric.Add(payload.size());
  pull_bytes_metric.Add(payload.size());
  ByteView from = payload.bytes();
  for (const ShardMessage::Part& part : message.parts) {
    if (part.dense) {
      ScatterBlocks(part, &from, dense_[part.source].dst);
    } else {
      ScatterRows(part, &from, rows_[part.source].dst);
    }
  }
  MutexLock lock(&mu_);
  ++taken_;
  for (size_t i = 0; i < message.parts.size(); ++i) {
    Version& version = versions_[message.parts[i].shard];
    const Version read = response.shard_versions(static_cast<int>(i));
    version = version == 0 ? read : std::min(version, read);
    if (!HasSteps(*message.parts[i].table) || response.steps_size() == 0) continue;
    const uint64_t steps = response.steps(static_cast<int>(i));
    steps_ = std::min(steps_.value_or(steps), steps);
  }
  return absl::OkStatus();
}

uint64_t PullValues::steps() const {
  MutexLock lock(&mu_);
  return steps_.value_or(0);
}

bool PullValues::complete() const {
  MutexLock lock(&mu_);
  return taken_ == messages_;
}

ShardVersions PullValues::versions() const {
  MutexLock lock(&mu_);
  return versions_;
}

}  // namespace lodestone::worker
