#include "worker/client/request_router.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"

namespace lodestone::worker {
namespace {

// Upper bounds of what descriptions take on the wire, in requests and in answers.
constexpr size_t kMessageHeaderBytes = 128;
constexpr size_t kPartHeaderBytes = 48;
constexpr size_t kBlockHeaderBytes = 16;  // Its index and, in answers, its version.

// Items of one source, ordered by shard (stable): those of shard s are order[begin[s] … begin[s + 1]).
struct ByShard {
  std::vector<uint32_t> order;
  std::vector<uint32_t> begin;
};

// Counting sort of the items 0 … count - 1 by `shard_of(item)`.
template <typename ShardOf>
ByShard SortByShard(uint32_t count, uint32_t shards, ShardOf shard_of) {
  ByShard sorted;
  std::vector<uint32_t> shard(count);
  sorted.begin.assign(shards + 1, 0);
  for (uint32_t i = 0; i < count; ++i) {
    shard[i] = shard_of(i);
    ++sorted.begin[shard[i] + 1];
  }
  std::partial_sum(sorted.begin.begin(), sorted.begin.end(), sorted.begin.begin());
  std::vector<uint32_t> next(sorted.begin.begin(), sorted.begin.end() - 1);
  sorted.order.resize(count);
  for (uint32_t i = 0; i < count; ++i) sorted.order[next[shard[i]]++] = i;
  return sorted;
}

// One table's items, sorted.
struct Source {
  const TableHandle* table;
  bool dense;
  size_t index;
  std::vector<uint32_t> begin;
  const uint32_t* order;

  std::span<const uint32_t> ItemsOf(ShardId shard) const {
    return std::span<const uint32_t>(order + begin[shard], begin[shard + 1] - begin[shard]);
  }
  size_t BytesOf(uint32_t item) const {
    if (!dense) return sizeof(Key) + sizeof(float) * table->dim;
    return kBlockHeaderBytes + sizeof(float) * table->layout.ElementsOf(item);
  }
};

// The room that is made at once for the parts of a message.
constexpr size_t kPartsReservedMax = 256;

// The messages of one server: appends parts, and begins a new message whenever the last is full.
class MessageCutter {
 public:
  // `parts`: how many there will be at most, if none is cut.
  MessageCutter(uint32_t server, const MessageLimits& limits, size_t parts, std::vector<ShardMessage>* messages)
      : server_(server), limits_(limits), parts_(parts), messages_(messages) {}

  // A message that is full by `bytes_target` gets no more.
  absl::Status Add(ShardId shard, const Source& source, size_t bytes_target) {
    const std::span<const uint32_t> items = source.ItemsOf(shard);
    if (items.empty() && IsWanted(source, shard)) AddEmpty(shard, source, bytes_target);
    size_t from = 0;
    while (from < items.size()) {
      const size_t first = kPartHeaderBytes + source.BytesOf(items[from]);
      if (kMessageHeaderBytes + first > limits_.bytes_max) return TooLarge(source, items[from]);
      if (bytes_ == 0 || bytes_ + first > bytes_target) Begin();
      bytes_ += first;
      size_t to = from + 1;
      for (; to < items.size(); ++to) {
        const size_t bytes = source.BytesOf(items[to]);
        if (bytes_ + bytes > bytes_target) break;
        bytes_ += bytes;
      }
      messages_->back().parts.push_back(
          {shard, source.table, source.dense, source.index, items.subspan(from, to - from)});
      from = to;
    }
    return absl::OkStatus();
  }

  // Adds all that is for a shard to one message.
  absl::Status AddWhole(ShardId shard, const std::vector<Source>& sources) {
    size_t bytes = 0;
    for (const Source& source : sources) {
      const std::span<const uint32_t> items = source.ItemsOf(shard);
      if (IsWanted(source, shard)) bytes += kPartHeaderBytes;
      for (const uint32_t item : items) bytes += source.BytesOf(item);
    }
    if (kMessageHeaderBytes + bytes > limits_.bytes_max) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the gradients of one step for shard ", shard, " take ", bytes, " bytes, which does not fit into ",
          "server.message_max_bytes=", limits_.bytes_max, ", and those of a step of ranges, sync or tokens cannot be ",
          "divided: raise cluster.shards or server.message_max_bytes, or set train.sharing: partitions and no "
          "train.consistency"));
    }
    if (bytes > 0 && (bytes_ == 0 || bytes_ + bytes > limits_.bytes_target)) Begin();
    for (const Source& source : sources) LODESTONE_RETURN_IF_ERROR(Add(shard, source, limits_.bytes_max));
    return absl::OkStatus();
  }

 private:
  // Whether the shard gets a part of it. Of rows, every shard holds some, or may.
  bool IsWanted(const Source& source, ShardId shard) const {
    return !source.ItemsOf(shard).empty() || (limits_.every_shard && !source.dense);
  }

  void AddEmpty(ShardId shard, const Source& source, size_t bytes_target) {
    if (bytes_ == 0 || bytes_ + kPartHeaderBytes > bytes_target) Begin();
    bytes_ += kPartHeaderBytes;
    messages_->back().parts.push_back({shard, source.table, source.dense, source.index, {}});
  }

  void Begin() {
    messages_->push_back(ShardMessage{server_, {}});
    messages_->back().parts.reserve(std::min(parts_, kPartsReservedMax));
    bytes_ = kMessageHeaderBytes;
  }

  absl::Status TooLarge(const Source& source, uint32_t item) const {
    return absl::InvalidArgumentError(absl::StrCat(
        "table ", source.table->spec.name(), ": a single ", source.dense ? "block" : "row", " takes ",
        source.BytesOf(item), " bytes, which does not fit into server.message_max_bytes=", limits_.bytes_max,
        source.dense ? "; give the table smaller block_elements" : "; raise the limit"));
  }

  const uint32_t server_;
  const MessageLimits limits_;
  const size_t parts_;
  std::vector<ShardMessage>* const messages_;
  size_t bytes_ = 0;  // Of the message under way; 0: none.
};

template <typename Dense, typename Rows>
absl::Status CheckTables(std::span<const Dense> dense, std::span<const Rows> rows) {
  uint64_t keys = 0;
  for (const Dense& source : dense) {
    if (!source.table->spec.has_dense()) {
      return absl::InvalidArgumentError(absl::StrCat("table ", source.table->spec.name(), " is not dense"));
    }
  }
  for (const Rows& source : rows) {
    if (!source.table->spec.has_embedding()) {
      return absl::InvalidArgumentError(absl::StrCat("table ", source.table->spec.name(), " has no rows"));
    }
    keys += source.keys.size();
  }
  if (keys > limits::kRowsPerBatchMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(keys, " keys in one call; at most ", limits::kRowsPerBatchMax, " are allowed"));
  }
  return absl::OkStatus();
}

template <typename Dense, typename Rows>
std::vector<Source> SortSources(std::span<const Dense> dense, std::span<const Rows> rows, uint32_t shards,
                                Routing* routing) {
  std::vector<Source> sources;
  sources.reserve(dense.size() + rows.size());
  routing->orders.reserve(sources.capacity());
  const auto add = [&](const TableHandle* table, bool is_dense, size_t index, ByShard sorted) {
    routing->orders.push_back(std::move(sorted.order));
    sources.push_back(Source{table, is_dense, index, std::move(sorted.begin), routing->orders.back().data()});
  };
  for (size_t i = 0; i < dense.size(); ++i) {
    const TableHandle* table = dense[i].table;
    add(table, true, i, SortByShard(table->layout.block_count(), shards, [&](uint32_t block) {
          return ShardOfBlock(table->id, block, shards);
        }));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::span<const Key> keys = rows[i].keys;
    add(rows[i].table, false, i, SortByShard(static_cast<uint32_t>(keys.size()), shards, [&](uint32_t k) {
          return ShardOfKey(keys[k], shards);
        }));
  }
  return sources;
}

// Orders the parts of each message by source, and those of one source by shard.
void SortBySource(std::vector<ShardMessage>* messages) {
  for (ShardMessage& message : *messages) {
    std::stable_sort(message.parts.begin(), message.parts.end(),
                     [](const ShardMessage::Part& a, const ShardMessage::Part& b) {
                       return std::pair(!a.dense, a.source) < std::pair(!b.dense, b.source);
                     });
  }
}

// Says of each part what later messages of the push have. Messages of one server are adjacent.
void MarkMore(std::vector<ShardMessage>* messages) {
  absl::flat_hash_set<TableId> for_ps;                         // Tables of the server's later messages,
  absl::flat_hash_set<std::pair<TableId, ShardId>> for_shard;  // and their parts.
  for (size_t m = messages->size(); m-- > 0;) {
    ShardMessage& message = (*messages)[m];
    const bool last = m + 1 == messages->size() || (*messages)[m + 1].server != message.server;
    const bool first = m == 0 || (*messages)[m - 1].server != message.server;
    if (last) {
      for_ps.clear();
      for_shard.clear();
    }
    if (last && first) continue;
    for (ShardMessage::Part& part : message.parts) {
      if (for_shard.contains({part.table->id, part.shard})) {
        part.more = v1::Part::FOR_SHARD;
      } else if (for_ps.contains(part.table->id)) {
        part.more = v1::Part::FOR_PS;
      }
    }
    for (const ShardMessage::Part& part : message.parts) {
      for_ps.insert(part.table->id);
      for_shard.emplace(part.table->id, part.shard);
    }
  }
}

}  // namespace

template <typename Dense, typename Rows>
absl::StatusOr<Routing> RequestRouter::Route(std::span<const Dense> dense, std::span<const Rows> rows) const {
  LODESTONE_RETURN_IF_ERROR(CheckTables(dense, rows));
  Routing routing;
  const std::vector<Source> sources = SortSources(dense, rows, map_.shards(), &routing);
  MessageLimits cut = limits_;
  cut.bytes_target = std::min(limits_.bytes_target, limits_.bytes_max);
  for (uint32_t server = 0; server < map_.servers(); ++server) {
    const std::vector<ShardId>& shards = map_.ShardsOf(server);
    MessageCutter cutter(server, cut, shards.size() * sources.size(), &routing.messages);
    for (const ShardId shard : shards) {
      if (cut.whole_shards) {
        LODESTONE_RETURN_IF_ERROR(cutter.AddWhole(shard, sources));
        continue;
      }
      for (const Source& source : sources) LODESTONE_RETURN_IF_ERROR(cutter.Add(shard, source, cut.bytes_target));
    }
  }
  if (sources.size() > 1) SortBySource(&routing.messages);
  return routing;
}

absl::StatusOr<Routing> RequestRouter::RoutePush(std::span<const DenseGradient> dense,
                                                 std::span<const RowGradients> rows) const {
  LODESTONE_ASSIGN_OR_RETURN(Routing routing, Route(dense, rows));
  MarkMore(&routing.messages);
  return routing;
}

absl::StatusOr<Routing> RequestRouter::RoutePull(std::span<const DensePull> dense,
                                                 std::span<const RowPull> rows) const {
  return Route(dense, rows);
}

size_t ShardMessage::Part::ValueCount() const {
  if (!dense) return items.size() * table->dim;
  size_t count = 0;
  for (BlockIndex block : items) count += table->layout.ElementsOf(block);
  return count;
}

size_t ShardMessage::ValueBytes() const {
  size_t values = 0;
  for (const Part& part : parts) values += part.ValueCount();
  return values * sizeof(float);
}

std::vector<size_t> ServersInTurn(const std::vector<ShardMessage>& messages) {
  std::vector<std::pair<size_t, size_t>> turns;  // Turn of the message's server, index.
  for (size_t i = 0, turn = 0; i < messages.size(); ++i) {
    turn = i > 0 && messages[i].server == messages[i - 1].server ? turn + 1 : 0;
    turns.emplace_back(turn, i);
  }
  std::sort(turns.begin(), turns.end());
  std::vector<size_t> order;
  order.reserve(turns.size());
  for (const auto& [turn, index] : turns) order.push_back(index);
  return order;
}

size_t RunLength(std::span<const ShardMessage::Part> parts, size_t begin) {
  const ShardMessage::Part& first = parts[begin];
  size_t end = begin + 1;
  if (first.dense) return 1;
  while (end < parts.size() && !parts[end].dense && parts[end].source == first.source &&
         parts[end].more == first.more) {
    ++end;
  }
  return end - begin;
}

void AddParts(const ShardMessage& message, google::protobuf::RepeatedPtrField<v1::Part>* parts) {
  for (size_t begin = 0, length = 0; begin < message.parts.size(); begin += length) {
    const ShardMessage::Part& first = message.parts[begin];
    length = RunLength(message.parts, begin);
    v1::Part& proto = *parts->Add();
    proto.set_table(first.table->id);
    if (first.more != v1::Part::NOTHING) proto.set_more(first.more);
    if (length == 1) {
      proto.set_shard(first.shard);
      if (first.dense) {
        proto.mutable_blocks()->Add(first.items.begin(), first.items.end());
      } else {
        proto.set_row_count(static_cast<uint32_t>(first.items.size()));
      }
      continue;
    }
    proto.mutable_shards()->Reserve(static_cast<int>(length));
    proto.mutable_row_counts()->Reserve(static_cast<int>(length));
    for (const ShardMessage::Part& part : std::span(message.parts).subspan(begin, length)) {
      proto.add_shards(part.shard);
      proto.add_row_counts(static_cast<uint32_t>(part.items.size()));
    }
  }
}

}  // namespace lodestone::worker
