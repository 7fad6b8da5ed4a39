#include "server/store/request_view.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/planted_defect.h"
#include "common/base/status.h"
#include "common/wire/message.h"
#include "common/wire/part.h"
#include "common/wire/shard_map.h"
#include "server/optimizer/clipping.h"
#include "server/shard/shard_steps.h"
#include "server/store/table_entry.h"

namespace lodestone::server {
namespace {

absl::Status Invalid(int part, const std::string& table, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("part ", part, ", table `", table, "`: ", what));
}

absl::StatusOr<const TableEntry*> FindTable(int index, const v1::Part& part, const TableMap& tables) {
  const auto found = tables.find(part.table());
  if (found != tables.end()) return found->second.get();
  return absl::NotFoundError(absl::StrCat("part ", index, ": unknown table id ", part.table()));
}

// INVALID_ARGUMENT if the shards of a part that is of several contradict what else it says.
absl::Status CheckShards(int index, const v1::Part& part, const Table& table) {
  if (part.shards_size() != part.row_counts_size()) {
    return Invalid(index, table.name(),
                   absl::StrCat("has ", part.shards_size(), " shards and ", part.row_counts_size(), " row counts"));
  }
  if (part.read_versions_size() > 0 && static_cast<size_t>(part.read_versions_size()) != ShardCount(part)) {
    return Invalid(index, table.name(),
                   absl::StrCat("has ", part.read_versions_size(), " read_versions for ", ShardCount(part), " shards"));
  }
  if (part.shards_size() == 0) return absl::OkStatus();
  if (table.is_dense()) return Invalid(index, table.name(), "is a dense table, but the part is of several shards");
  if (part.shard() > 0 || part.row_count() > 0) {
    return Invalid(index, table.name(), "the part is of several shards, and has a shard or a row_count beside them");
  }
  return absl::OkStatus();
}

// Fills all of `view` but `dense` and the pointers into the payload, for the `row_count` rows that `part` has of
// `shard`, or its blocks.
absl::Status ViewHeader(int index, const v1::Part& part, ShardId shard, uint32_t row_count, const TableEntry& entry,
                        PartView* view) {
  const Table& table = *entry.table;
  view->table = entry.table.get();
  view->guard = entry.guard != nullptr && entry.guard->on() ? entry.guard.get() : nullptr;
  view->index = index;
  view->shard = shard;
  view->last_for_ps = part.more() == v1::Part::NOTHING;
  view->last_for_shard = part.more() != v1::Part::FOR_SHARD;
  if (part.block_versions_size() > 0 || part.evicted_count() > 0) {
    return Invalid(index, table.name(), "block_versions and evicted_count belong to answers");
  }
  if (!table.is_dense()) {
    if (part.blocks_size() > 0) return Invalid(index, table.name(), "is an embedding table, but the part has blocks");
    view->row_count = row_count;
    view->values = uint64_t{row_count} * table.dim();
    return absl::OkStatus();
  }
  if (row_count > 0) return Invalid(index, table.name(), "is a dense table, but the part has rows");
  view->blocks = {part.blocks().data(), static_cast<size_t>(part.blocks_size())};
  for (size_t i = 0; i < view->blocks.size(); ++i) {
    const BlockIndex block = view->blocks[i];
    if (block >= table.layout().block_count()) {
      return Invalid(index, table.name(),
                     absl::StrCat("block ", block, " of a table with ", table.layout().block_count(), " blocks"));
    }
    if (i > 0 && block <= view->blocks[i - 1]) return Invalid(index, table.name(), "blocks are not ascending");
    if (ShardOfBlock(table.id(), block, table.shards()) != shard) {
      return Invalid(index, table.name(), absl::StrCat("block ", block, " is not on shard ", shard));
    }
    view->values += table.layout().ElementsOf(block);
  }
  return absl::OkStatus();
}

// The number of parts, one that is of several shards counted for each.
absl::StatusOr<size_t> CountParts(const Parts& parts) {
  size_t count = 0;
  for (const v1::Part& part : parts) count += ShardCount(part);
  if (count <= limits::kMessagePartsMax) return count;
  return absl::InvalidArgumentError(
      absl::StrCat(count, " parts in one message; the limit is ", limits::kMessagePartsMax));
}

// Bytes that a part takes: of keys, and of values, which only a push has.
struct PartBytes {
  uint64_t keys = 0;
  uint64_t values = 0;

  void Add(PartKind kind, const PartView& view) {
    keys += view.row_count * sizeof(Key);
    if (kind == PartKind::kPush) values += view.values * sizeof(float);
  }
};

// Points `views`, those of one part, at their shares, and takes these off `payload` and `keys`, which are the same if
// there is no list of keys.
absl::Status TakeBytes(PartKind kind, std::span<PartView> views, ByteView* payload, ByteView* keys) {
  PartBytes bytes;
  for (const PartView& view : views) bytes.Add(kind, view);
  const PartView& first = views.front();
  const uint64_t of_payload = keys == payload ? bytes.keys + bytes.values : bytes.values;
  if (of_payload > payload->size()) {
    return Invalid(first.index, first.table->name(),
                   absl::StrCat("needs ", of_payload, " bytes of payload, but ", payload->size(), " are left"));
  }
  if (bytes.keys > keys->size()) {
    return Invalid(first.index, first.table->name(),
                   absl::StrCat("has ", bytes.keys / sizeof(Key), " rows, but the list of keys has ",
                                keys->size() / sizeof(Key), " left"));
  }
  ByteView part_keys = keys->Take(bytes.keys);
  ByteView part_values = payload->Take(bytes.values);
  for (PartView& view : views) {
    view.keys = part_keys.Take(view.row_count * sizeof(Key));
    if (kind == PartKind::kPush) view.gradients = part_values.Take(view.values * sizeof(float));
  }
  return absl::OkStatus();
}

// The shards of a part must have the role `least`, or a greater one.
absl::Status CheckRoles(PartKind kind, int index, const v1::Part& part, const ShardRoles& roles, ShardRole least) {
  absl::Status status;
  ForEachShard(part, [&](ShardId shard, uint32_t) {
    if (!status.ok()) return;
    if (shard >= roles.shards()) {
      status = absl::InvalidArgumentError(
          absl::StrCat("part ", index, ": there is no shard ", shard, " of ", roles.shards()));
    } else if (roles.Of(shard) < least && !(kind == PartKind::kPull && Planted(Defect::kStaleOwnerAnswers))) {
      status = Annotate(NotOwned(shard), absl::StrCat("part ", index));
    }
  });
  return status;
}

absl::Status CheckKeys(const PartView& view) {
  const Table& table = *view.table;
  absl::Status status;
  view.keys.ForEachRun<Key>([&](const uint8_t* keys, size_t count) {
    for (size_t i = 0; i < count && status.ok(); ++i) {
      const Key key = LoadAt<Key>(keys, i);
      if (ShardOfKey(key, table.shards()) == view.shard) continue;
      status = Invalid(view.index, table.name(), absl::StrCat("key ", key, " is not on shard ", view.shard));
    }
  });
  return status;
}

// Index of the first of the view's gradients that is NaN or infinite; view.values if all are finite.
size_t FirstBadGradient(const PartView& view) {
  size_t checked = 0;
  bool finite = true;
  view.gradients.ForEachRun<float>([&](const uint8_t* run, size_t count) {
    if (!finite) return;
    const size_t bad = FirstNonFinite(run, count);
    checked += bad;
    finite = bad == count;
  });
  return checked;
}

}  // namespace

absl::StatusOr<size_t> PushPayloadBytes(const Parts& parts, const TableMap& tables, size_t* keys) {
  PartBytes total;
  LODESTONE_RETURN_IF_ERROR(CountParts(parts).status());
  for (int i = 0; i < parts.size(); ++i) {
    LODESTONE_ASSIGN_OR_RETURN(const TableEntry* const entry, FindTable(i, parts[i], tables));
    LODESTONE_RETURN_IF_ERROR(CheckShards(i, parts[i], *entry->table));
    absl::Status status;
    ForEachShard(parts[i], [&](ShardId shard, uint32_t row_count) {
      if (!status.ok()) return;
      PartView view;
      status = ViewHeader(i, parts[i], shard, row_count, *entry, &view);
      total.Add(PartKind::kPush, view);
    });
    LODESTONE_RETURN_IF_ERROR(status);
  }
  if (keys != nullptr) *keys = total.keys;
  return total.keys + total.values;
}

absl::Status NotOwned(ShardId shard) {
  return absl::AbortedError(absl::StrCat("shard ", shard, " is not owned by this ps; refresh the shard map"));
}

absl::StatusOr<std::vector<PartView>> ViewParts(PartKind kind, const Parts& parts, ByteView payload,
                                                std::optional<ByteView> keys, const TableMap& tables,
                                                const ShardRoles& roles, ShardRole least) {
  LODESTONE_ASSIGN_OR_RETURN(const size_t count, CountParts(parts));
  std::vector<PartView> views(count);
  const size_t payload_size = payload.size();
  ByteView* const keys_at = keys.has_value() ? &*keys : &payload;
  uint64_t answer_bytes = 0;
  size_t begin = 0;  // Of the part's views.
  for (int i = 0; i < parts.size(); ++i) {
    LODESTONE_RETURN_IF_ERROR(CheckRoles(kind, i, parts[i], roles, least));
    LODESTONE_ASSIGN_OR_RETURN(const TableEntry* const entry, FindTable(i, parts[i], tables));
    LODESTONE_RETURN_IF_ERROR(CheckShards(i, parts[i], *entry->table));
    if (kind == PartKind::kPull && parts[i].read_versions_size() > 0) {
      return Invalid(i, entry->table->name(), "read_versions belong to pushes");
    }
    const std::span<PartView> part = std::span(views).subspan(begin, ShardCount(parts[i]));
    begin += part.size();
    absl::Status status;
    PartView* view = part.data();
    ForEachShard(parts[i], [&](ShardId shard, uint32_t row_count) {
      if (!status.ok()) return;
      status = ViewHeader(i, parts[i], shard, row_count, *entry, view);
      if (shard < entry->dense.size()) view->dense = entry->dense[shard];
      if (parts[i].read_versions_size() > 0) {
        view->read_version = parts[i].read_versions(static_cast<int>(view - part.data()));
      }
      answer_bytes += view->values * sizeof(float);
      ++view;
    });
    LODESTONE_RETURN_IF_ERROR(status);
    LODESTONE_RETURN_IF_ERROR(TakeBytes(kind, part, &payload, keys_at));
    if (kind == PartKind::kPull && answer_bytes > limits::kPullBytesMax) {
      return Invalid(i, entry->table->name(),
                     absl::StrCat("the answer would be over the limit of ", limits::kPullBytesMax,
                                  " bytes; pull in several calls"));
    }
    if (entry->table->is_dense()) continue;
    for (const PartView& rows : part) LODESTONE_RETURN_IF_ERROR(CheckKeys(rows));
  }
  if (keys.has_value() && !keys->empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the list of keys has ", keys->size() / sizeof(Key), " that belong to no part"));
  }
  if (!payload.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("the payload has ", payload_size, " bytes, but the parts describe ",
                                                   payload_size - payload.size()));
  }
  return views;
}

absl::Status CheckFinite(std::span<const PartView> views) {
  for (const PartView& view : views) {
    const size_t bad = FirstBadGradient(view);
    if (bad == view.values) continue;
    const Table& table = *view.table;
    const float value = view.gradients.Load<float>(bad);
    if (!table.is_dense()) {
      return absl::InvalidArgumentError(absl::StrCat("gradient of table `", table.name(), "`, key ",
                                                     view.keys.Load<Key>(bad / table.dim()), ", element ",
                                                     bad % table.dim(), " is ", value));
    }
    size_t element = bad;
    BlockIndex block = 0;
    for (const BlockIndex candidate : view.blocks) {
      block = candidate;
      if (element < table.layout().ElementsOf(block)) break;
      element -= table.layout().ElementsOf(block);
    }
    return absl::InvalidArgumentError(absl::StrCat("gradient of table `", table.name(), "`, element ",
                                                   uint64_t{block} * table.layout().block_elements + element, " is ",
                                                   value));
  }
  return absl::OkStatus();
}

absl::Status CheckContribution(std::span<const PartView> views, const v1::PushRequest& header) {
  for (const PartView& view : views) {
    if (!view.table->settings().collects_steps()) continue;
    const v1::Consistency& rule = view.table->spec().consistency();
    const std::string& name = view.table->name();
    if (!header.has_contribution()) return NoContribution(name);
    const v1::Contribution& contribution = header.contribution();
    if (!view.last_for_shard) {
      return Invalid(view.index, name,
                     "is cut: a contribution to a step has all that it has for a shard in one message");
    }
    if (contribution.samples() == 0 || contribution.samples() > limits::kContributionSamplesMax) {
      return Invalid(view.index, name,
                     absl::StrCat("the contribution is of ", contribution.samples(), " samples; 1 to ",
                                  limits::kContributionSamplesMax, " make sense"));
    }
    if (rule.has_sync() && contribution.batch() >= rule.sync().batches()) {
      return Invalid(view.index, name,
                     absl::StrCat("the contribution is of batch ", contribution.batch(), ", and the steps have ",
                                  rule.sync().batches(), " batches"));
    }
  }
  return absl::OkStatus();
}

absl::Status JudgeGuards(std::span<const PartView> views, std::vector<GuardedNorm>* norms) {
  struct Sum {
    const Table* table = nullptr;
    double squares = 0;
    uint64_t values = 0;
  };
  absl::flat_hash_map<NormGuard*, Sum> sums;
  for (const PartView& view : views) {
    if (view.guard == nullptr || view.values == 0) continue;
    const double norm = GradientNorm(view.gradients, 0);
    Sum& sum = sums[view.guard];
    sum.table = view.table;
    sum.squares += norm * norm;
    sum.values += view.values;
  }
  absl::Status verdict;
  for (const auto& [guard, sum] : sums) {
    norms->push_back({guard, sum.squares / static_cast<double>(sum.values)});
    verdict.Update(guard->Judge(sum.table->name(), norms->back().mean_square));
  }
  return verdict;
}

}  // namespace lodestone::server
