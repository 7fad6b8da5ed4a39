#include "server/store/request_view.h"

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/planted_defect.h"
#include "common/base/status.h"
#include "common/wire/message.h"
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

// Fills all of `view` but `dense` and the pointers into the payload; `bytes` is what the part takes of it.
absl::Status ViewHeader(PartKind kind, int index, const v1::Part& part, const TableEntry& entry, PartView* view,
                        uint64_t* bytes) {
  const Table& table = *entry.table;
  view->table = entry.table.get();
  view->guard = entry.guard != nullptr && entry.guard->on() ? entry.guard.get() : nullptr;
  view->index = index;
  view->shard = part.shard();
  view->last_for_ps = part.more() == v1::Part::NOTHING;
  view->last_for_shard = part.more() != v1::Part::FOR_SHARD;
  if (part.block_versions_size() > 0 || part.evicted_count() > 0) {
    return Invalid(index, table.name(), "block_versions and evicted_count belong to answers");
  }
  if (!table.is_dense()) {
    if (part.blocks_size() > 0) return Invalid(index, table.name(), "is an embedding table, but the part has blocks");
    view->row_count = part.row_count();
    view->values = uint64_t{part.row_count()} * table.dim();
    *bytes = view->row_count * sizeof(Key) + (kind == PartKind::kPush ? view->values * sizeof(float) : 0);
    return absl::OkStatus();
  }
  if (part.row_count() > 0) return Invalid(index, table.name(), "is a dense table, but the part has rows");
  view->blocks = {part.blocks().data(), static_cast<size_t>(part.blocks_size())};
  for (size_t i = 0; i < view->blocks.size(); ++i) {
    const BlockIndex block = view->blocks[i];
    if (block >= table.layout().block_count()) {
      return Invalid(index, table.name(),
                     absl::StrCat("block ", block, " of a table with ", table.layout().block_count(), " blocks"));
    }
    if (i > 0 && block <= view->blocks[i - 1]) return Invalid(index, table.name(), "blocks are not ascending");
    if (ShardOfBlock(table.id(), block, table.shards()) != part.shard()) {
      return Invalid(index, table.name(), absl::StrCat("block ", block, " is not on shard ", part.shard()));
    }
    view->values += table.layout().ElementsOf(block);
  }
  *bytes = kind == PartKind::kPush ? view->values * sizeof(float) : 0;
  return absl::OkStatus();
}

// Points `view` at its share, of which `needed` bytes are keys and gradients, and takes that off `payload` and `keys`,
// which are the same if there is no list of keys.
absl::Status TakeBytes(uint64_t needed, ByteView* payload, ByteView* keys, PartView* view) {
  const uint64_t key_bytes = view->row_count * sizeof(Key);
  const uint64_t of_payload = keys == payload ? needed : needed - key_bytes;
  if (of_payload > payload->size()) {
    return Invalid(view->index, view->table->name(),
                   absl::StrCat("needs ", of_payload, " bytes of payload, but ", payload->size(), " are left"));
  }
  if (key_bytes > keys->size()) {
    return Invalid(
        view->index, view->table->name(),
        absl::StrCat("has ", view->row_count, " rows, but the list of keys has ", keys->size() / sizeof(Key), " left"));
  }
  view->keys = keys->Take(key_bytes);
  view->gradients = payload->Take(needed - key_bytes);
  return absl::OkStatus();
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
  uint64_t total = 0;
  uint64_t key_bytes = 0;
  for (int i = 0; i < parts.size(); ++i) {
    PartView view;
    uint64_t bytes = 0;
    LODESTONE_ASSIGN_OR_RETURN(const TableEntry* const entry, FindTable(i, parts[i], tables));
    LODESTONE_RETURN_IF_ERROR(ViewHeader(PartKind::kPush, i, parts[i], *entry, &view, &bytes));
    total += bytes;
    key_bytes += view.row_count * sizeof(Key);
  }
  if (keys != nullptr) *keys = key_bytes;
  return total;
}

absl::Status NotOwned(ShardId shard) {
  return absl::AbortedError(absl::StrCat("shard ", shard, " is not owned by this ps; refresh the shard map"));
}

absl::StatusOr<std::vector<PartView>> ViewParts(PartKind kind, const Parts& parts, ByteView payload,
                                                std::optional<ByteView> keys, const TableMap& tables,
                                                const ShardRoles& roles, ShardRole least) {
  if (parts.size() > static_cast<int>(limits::kMessagePartsMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat(parts.size(), " parts in one message; the limit is ", limits::kMessagePartsMax));
  }
  std::vector<PartView> views(parts.size());
  const size_t payload_size = payload.size();
  ByteView* const keys_at = keys.has_value() ? &*keys : &payload;
  uint64_t answer_bytes = 0;
  for (int i = 0; i < parts.size(); ++i) {
    PartView& view = views[i];
    if (parts[i].shard() >= roles.shards()) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", i, ": there is no shard ", parts[i].shard(), " of ", roles.shards()));
    }
    const bool stale = kind == PartKind::kPull && Planted(Defect::kStaleOwnerAnswers);
    if (roles.Of(parts[i].shard()) < least && !stale)
      return Annotate(NotOwned(parts[i].shard()), absl::StrCat("part ", i));
    uint64_t part_bytes = 0;
    LODESTONE_ASSIGN_OR_RETURN(const TableEntry* const entry, FindTable(i, parts[i], tables));
    LODESTONE_RETURN_IF_ERROR(ViewHeader(kind, i, parts[i], *entry, &view, &part_bytes));
    if (view.shard < entry->dense.size()) view.dense = entry->dense[view.shard];
    LODESTONE_RETURN_IF_ERROR(TakeBytes(part_bytes, &payload, keys_at, &view));
    if (kind == PartKind::kPull) {
      answer_bytes += view.values * sizeof(float);
      if (answer_bytes > limits::kPullBytesMax) {
        return Invalid(i, view.table->name(),
                       absl::StrCat("the answer would be over the limit of ", limits::kPullBytesMax,
                                    " bytes; pull in several calls"));
      }
    }
    if (!view.table->is_dense()) LODESTONE_RETURN_IF_ERROR(CheckKeys(view));
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
