#include "worker/training/parameters.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/awaited.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"

namespace lodestone::worker {
namespace {

// Tables begin on boundaries of 256 bytes, as a device's memory does.
constexpr size_t kTableAlignmentFloats = 64;
// A copy to a device costs as much as so many floats more in the one before (some microseconds at 50 GB/s).
constexpr size_t kGapFloatsMax = 1 << 16;

}  // namespace

// The newest blocks and versions that broadcasts have brought, until the trainer takes them.
class Parameters::Staging {
 public:
  Staging(const std::vector<const TableHandle*>& handles, uint32_t shards)
      : versions_(shards, 0), confirmed_(shards, false) {
    for (const TableHandle* handle : handles) {
      by_id_.emplace(handle->id, static_cast<uint32_t>(handles_.size()));
      handles_.push_back(*handle);
      Table& table = tables_.emplace_back();
      table.layout = handle->layout;
      table.values.resize(handle->layout.elements);
      table.versions.resize(handle->layout.block_count(), 0);
      table.waiting.resize(handle->layout.block_count(), false);
    }
  }

  // The tables, for the subscription, which lives as long as its callbacks and so as long as this.
  std::vector<const TableHandle*> handles() const {
    std::vector<const TableHandle*> handles;
    for (const TableHandle& handle : handles_) handles.push_back(&handle);
    return handles;
  }

  void OnBlock(const BlockUpdate& update) {
    const auto found = by_id_.find(update.table);
    if (found == by_id_.end()) return;
    MutexLock lock(&mu_);
    Table& table = tables_[found->second];
    if (update.block >= table.layout.block_count() || update.count != table.layout.ElementsOf(update.block)) {
      LODESTONE_LOG(WARN, "parameters", "broadcast block of a wrong size ignored table={} block={} count={}",
                    update.table, update.block, update.count);
      return;
    }
    if (update.version < table.versions[update.block]) return;
    update.values.CopyTo(table.values.data() + uint64_t{update.block} * table.layout.block_elements);
    table.versions[update.block] = update.version;
    if (!table.waiting[update.block]) waiting_.push_back({found->second, update.block});
    table.waiting[update.block] = true;
  }

  void OnShard(ShardId shard, Version version) {
    MutexLock lock(&mu_);
    if (shard >= versions_.size()) return;
    versions_[shard] = std::max(versions_[shard], version);
    confirmed_[shard] = true;
  }

  // Calls block(table, block, version, values, count) for each block that waits, and shard(shard, version) for each
  // shard whose version came since the last Take. Others may bring blocks between two of these calls: what they bring
  // is newer than the versions that are told.
  template <typename BlockFn, typename ShardFn>
  void Take(const std::vector<ShardId>& shards, BlockFn block_fn, ShardFn shard_fn) {
    std::vector<std::pair<uint32_t, BlockIndex>> blocks;
    std::vector<std::pair<size_t, Version>> confirmed;
    {
      MutexLock lock(&mu_);
      blocks.swap(waiting_);
      for (size_t i = 0; i < shards.size(); ++i) {
        if (confirmed_[shards[i]]) confirmed.emplace_back(i, versions_[shards[i]]);
        confirmed_[shards[i]] = false;
      }
    }
    for (const auto& [t, block] : blocks) {
      MutexLock lock(&mu_);
      Table& table = tables_[t];
      const uint64_t offset = uint64_t{block} * table.layout.block_elements;
      block_fn(t, block, table.versions[block], table.values.data() + offset, offset, table.layout.ElementsOf(block));
      table.waiting[block] = false;
    }
    for (const auto& [i, version] : confirmed) shard_fn(i, version);
  }

 private:
  struct Table {
    BlockLayout layout;
    std::vector<float> values;
    std::vector<Version> versions;  // Of the staged values, by block.
    std::vector<bool> waiting;      // By block: staged since the last Take.
  };

  // Constant after construction.
  std::vector<TableHandle> handles_;
  absl::flat_hash_map<TableId, uint32_t> by_id_;  // Indices of handles_ and tables_.

  Mutex mu_;
  std::vector<Table> tables_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<uint32_t, BlockIndex>> waiting_ ABSL_GUARDED_BY(mu_);
  ShardVersions versions_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> confirmed_ ABSL_GUARDED_BY(mu_);  // By shard: a version came since the last Take.
};

Parameters::Parameters(Client* client, std::vector<const TableHandle*> tables, const Options& options)
    : client_(client),
      options_(options),
      staging_(std::make_shared<Staging>(tables, client->shard_map()->shards())),
      values_(options.backend, kernels::Memory::kHost),
      versions_(client->shard_map()->shards(), 0),
      own_pushes_missing_max_(options.own_pushes_missing_max) {
  const uint32_t shards = client->shard_map()->shards();
  std::vector<bool> holds(shards, false);
  size_t floats = 0;
  for (const TableHandle* handle : tables) {
    const BlockIndex blocks = handle->layout.block_count();
    tables_.push_back({handle, floats, std::vector<Version>(blocks, 0), std::vector<uint64_t>(blocks, 0)});
    for (BlockIndex b = 0; b < blocks; ++b) holds[ShardOfBlock(handle->id, b, shards)] = true;
    floats += (handle->layout.elements + kTableAlignmentFloats - 1) / kTableAlignmentFloats * kTableAlignmentFloats;
  }
  if (float* const values = values_.Resize(floats); values != nullptr) std::fill_n(values, floats, 0.0f);
  for (ShardId s = 0; s < shards; ++s) {
    if (holds[s]) dense_shards_.push_back(s);
  }
  confirmed_ms_.resize(dense_shards_.size(), 0);
  confirmed_pushes_.resize(dense_shards_.size(), 0);
}

Parameters::~Parameters() = default;

absl::Status Parameters::CheckMemory() const {
  if (values_.data() != nullptr || values_.size() == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("no memory for ", values_.size() * sizeof(float),
                                                   " bytes of dense parameters that ", options_.backend->name(),
                                                   " could copy from"));
}

void Parameters::ForChangedSince(uint64_t stamp, absl::FunctionRef<void(size_t begin, size_t end)> range) const {
  size_t begin = 0, end = 0;
  for (const Table& table : tables_) {
    const BlockLayout& layout = table.handle->layout;
    for (BlockIndex b = 0; b < layout.block_count(); ++b) {
      if (table.block_stamps[b] <= stamp) continue;
      const size_t at = table.offset + size_t{b} * layout.block_elements;
      if (end == 0 || at > end + kGapFloatsMax) {
        if (end > 0) range(begin, end);
        begin = at;
      }
      end = at + layout.ElementsOf(b);
    }
  }
  if (end > 0) range(begin, end);
}

absl::Status Parameters::Start() { return PullAll(); }

absl::Status Parameters::SetSubscribed(bool subscribed) {
  if (subscribed == subscribed_) return absl::OkStatus();
  subscribed_ = subscribed;
  if (!subscribed) {
    client_->UnsubscribeAll();
    return absl::OkStatus();
  }
  return client_
      ->Subscribe(
          staging_->handles(),
          {.on_block = [staging = staging_](const BlockUpdate& update) { staging->OnBlock(update); },
           .on_shard = [staging = staging_](ShardId shard, Version version) { staging->OnShard(shard, version); }})
      .status();
}

absl::Status Parameters::Refresh(uint64_t acknowledged_pushes) {
  acknowledged_pushes_ = acknowledged_pushes;
  TakeStaged();
  return NeedsPull() ? PullAll() : absl::OkStatus();
}

absl::Status Parameters::RefreshTo(uint64_t acknowledged_pushes, const ShardVersions& wanted) {
  LODESTONE_RETURN_IF_ERROR(Refresh(acknowledged_pushes));
  const bool there = std::all_of(dense_shards_.begin(), dense_shards_.end(),
                                 [&](ShardId shard) { return versions_[shard] >= wanted[shard]; });
  return there ? absl::OkStatus() : PullAll();
}

absl::Status Parameters::PullAll() { return PullAll({}).status(); }

absl::StatusOr<ShardVersions> Parameters::PullAll(std::vector<RowPull> rows) { return PullSteps({}, std::move(rows)); }

absl::StatusOr<ShardVersions> Parameters::PullSteps(const StepRead& read, std::vector<RowPull> rows) {
  LODESTONE_RETURN_IF_ERROR(CheckMemory());
  struct Read {
    absl::Status status;
    ShardVersions versions;
    uint64_t steps = 0;
  };
  const Awaited<Read> answer;
  client_->PullSteps(read, BeginRead(), std::move(rows),
                     [answer](absl::Status status, ShardVersions versions, uint64_t steps) {
                       answer.Set({std::move(status), std::move(versions), steps});
                     });
  Read values = answer.Await();
  steps_ = values.steps;
  if (!values.status.ok()) return Annotate(values.status, "pulling dense parameters");
  ++pulls_;
  EndRead(values.versions);
  return std::move(values.versions);
}

std::vector<DensePull> Parameters::BeginRead() {
  read_began_ms_ = options_.time->NowMs();
  std::vector<DensePull> pulls;
  for (Table& table : tables_) pulls.push_back({table.handle, values_.data() + table.offset});
  return pulls;
}

void Parameters::EndRead(const ShardVersions& versions) {
  LODESTONE_CHECK(versions.size() == versions_.size());
  ++stamp_;
  const int64_t now_ms = options_.time->NowMs();
  read_took_ms_ = now_ms - read_began_ms_;
  for (size_t i = 0; i < dense_shards_.size(); ++i) {
    const ShardId shard = dense_shards_[i];
    versions_[shard] = std::max(versions_[shard], versions[shard]);
    confirmed_ms_[i] = now_ms;
    confirmed_pushes_[i] = acknowledged_pushes_;
  }
  for (Table& table : tables_) {
    for (BlockIndex b = 0; b < table.block_versions.size(); ++b) {
      const ShardId shard = ShardOfBlock(table.handle->id, b, static_cast<uint32_t>(versions_.size()));
      table.block_versions[b] = std::max(table.block_versions[b], versions[shard]);
      table.block_stamps[b] = stamp_;
    }
  }
  TakeStaged();
}

void Parameters::TakeStaged() {
  const int64_t now_ms = options_.time->NowMs();
  staging_->Take(
      dense_shards_,
      [&](uint32_t t, BlockIndex block, Version version, const float* staged, uint64_t offset, uint32_t count) {
        Table& table = tables_[t];
        if (version <= table.block_versions[block]) return;
        std::copy_n(staged, count, values_.data() + table.offset + offset);
        table.block_versions[block] = version;
        table.block_stamps[block] = ++stamp_;
        ++blocks_from_broadcasts_;
      },
      [&](size_t i, Version version) {
        Version& held = versions_[dense_shards_[i]];
        if (version <= held) return;  // Older than a pull.
        held = version;
        confirmed_ms_[i] = now_ms;
        confirmed_pushes_[i] = acknowledged_pushes_;
      });
}

bool Parameters::NeedsPull() const {
  if (dense_shards_.empty()) return false;
  const uint64_t pushes = *std::min_element(confirmed_pushes_.begin(), confirmed_pushes_.end());
  const int64_t ms = *std::min_element(confirmed_ms_.begin(), confirmed_ms_.end());
  return acknowledged_pushes_ - pushes > own_pushes_missing_max_ ||
         options_.time->NowMs() - ms >
             std::max(options_.refresh_ms_max, std::min(2 * read_took_ms_, 10 * options_.refresh_ms_max));
}

}  // namespace lodestone::worker
