// A table as a ps knows it: its specification made ready for use, and what is counted of it. The values live in the
// shards (dense_table.h, embedding_table.h).
//
// Thread safety: thread-safe. The shape is immutable; the settings and the counters synchronise themselves.
// Ownership: owned by the store, outlives the shards' parts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_view.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "proto/table.pb.h"
#include "server/optimizer/optimizer.h"
#include "server/table/age_counts.h"
#include "server/table/table_settings.h"

namespace lodestone::server {

class Table {
 public:
  // INVALID_ARGUMENT, naming the table and field, if the specification makes no sense.
  static absl::StatusOr<std::unique_ptr<Table>> Create(const v1::TableSpec& spec, uint64_t cluster_seed,
                                                       uint32_t shards);

  TableId id() const { return id_; }
  const std::string& name() const { return made().spec.name(); }
  const v1::TableSpec& spec() const { return settings().spec; }
  uint32_t shards() const { return shards_; }
  const Optimizer& optimizer() const { return *settings().optimizer; }
  const StateLayout& state_layout() const { return state_layout_; }

  bool is_dense() const { return made().spec.has_dense(); }
  // Dense tables only.
  const BlockLayout& layout() const { return layout_; }
  // Embedding tables only: floats per row.
  uint32_t dim() const { return dim_; }

  // "dense [256, 128]" or "embedding dim 16".
  std::string ShapeText() const;

  // Fills `dst` with the initial values `first` … `first + n - 1` of the dense table, or (key) of a row.
  void InitializeDense(uint64_t first, size_t n, float* dst) const;
  void InitializeRow(Key key, float* dst) const;

  // The settings that the table was made with, and those that it has now. Shards may still have others.
  const TableSettings& made() const { return *made_; }
  const TableSettings& settings() const { return *settings_.load(std::memory_order_acquire); }
  // Why a table with the specification `wanted` is another one than this: it has another shape, or another layout of
  // its optimizer's state. Empty: it is the same table with other settings. REQUIRES: the same name.
  std::string OtherTable(const v1::TableSpec& wanted) const;
  // Keeps the settings of `spec`, which a shard may then have; the same for the same specification.
  // FAILED_PRECONDITION, saying why, if it is of another table; INVALID_ARGUMENT as Create.
  absl::StatusOr<const TableSettings*> Keep(const v1::TableSpec& spec) const;
  // The highest revision of the settings that were kept: some shard may have it, though the table does not.
  uint64_t newest_revision() const;
  // `kept` are the table's settings now.
  void Use(const TableSettings* kept) { settings_.store(kept, std::memory_order_release); }

  // What brings the norm of `gradient`, clamped to [-clip_value, clip_value] (0: not), down to `norm_max`: at most 1.
  static float ScaleToNorm(ByteView gradient, float clip_value, float norm_max);

  // Of all tables of this ps together.
  struct Totals {
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> rows{0};
  };
  // What is counted, over all shards of this ps.
  struct Counters {
    Totals* totals = nullptr;  // Set before anything is counted. May be null.
    std::atomic<uint64_t> bytes{0};
    std::atomic<uint64_t> blocks{0};
    std::atomic<uint64_t> rows{0};
    std::atomic<uint64_t> updates{0};
    std::atomic<uint64_t> evicted{0};
    std::atomic<uint64_t> not_admitted{0};
    std::atomic<uint64_t> turned_away{0};
    std::atomic<uint64_t> reserved{0};  // Bytes that pushes under way may add.
    std::atomic<uint64_t> pushes{0};    // Since the last broadcast by count.
    // Of steps (server/shard/step_collector.h): applied on the shard that is furthest; contributions, by shard.
    std::atomic<uint64_t> steps{0};
    std::atomic<uint64_t> contributions_pending{0};
    std::atomic<uint64_t> contribution_bytes{0};  // Of those; part of `bytes`.
    std::atomic<bool> steps_held{false};          // None is taken now: the table's consistency changes.
    std::atomic<uint64_t> contributions_late{0};
    std::atomic<uint64_t> contributions_too_old{0};
    AgeCounts token_ages;

    // Add to the bytes or rows; wrap to a subtraction.
    void AddBytes(uint64_t more) { Add(more, &bytes, totals == nullptr ? nullptr : &totals->bytes); }
    void AddRows(uint64_t more) { Add(more, &rows, totals == nullptr ? nullptr : &totals->rows); }

    // Calls f(name, value) with each of them that is a figure of admin.proto's TableStatus, by that name.
    template <typename F>
    void ForEachFigure(const F& f) const {
      f("bytes", bytes.load());
      f("blocks", blocks.load());
      f("rows", rows.load());
      f("updates", updates.load());
      f("evicted", evicted.load());
      f("not_admitted", not_admitted.load());
      f("turned_away", turned_away.load());
      f("steps", steps.load());
      f("contributions_pending", contributions_pending.load());
      f("contributions_late", contributions_late.load());
      f("contributions_too_old", contributions_too_old.load());
      f("token_age_p50", token_ages.Percentile(50));
      f("token_age_p90", token_ages.Percentile(90));
      f("token_age_max", token_ages.max());
    }

   private:
    static void Add(uint64_t more, std::atomic<uint64_t>* to, std::atomic<uint64_t>* total) {
      if (more == 0) return;
      to->fetch_add(more, std::memory_order_relaxed);
      if (total != nullptr) total->fetch_add(more, std::memory_order_relaxed);
    }
  };
  Counters& counters() { return counters_; }
  const Counters& counters() const { return counters_; }

 private:
  Table() = default;

  // Constant after construction.
  TableId id_ = 0;
  const TableSettings* made_ = nullptr;
  uint32_t shards_ = 1;
  StateLayout state_layout_;
  BlockLayout layout_;
  uint64_t fan_in_ = 1;
  uint64_t fan_out_ = 1;
  uint32_t dim_ = 0;
  uint64_t seed_ = 0;

  std::atomic<const TableSettings*> settings_{nullptr};
  mutable Mutex mu_;
  // All that there ever were: shards, and what is read of them anywhere, point to them.
  mutable std::vector<std::unique_ptr<const TableSettings>> kept_ ABSL_GUARDED_BY(mu_);

  // Synchronises itself.
  Counters counters_;
};

}  // namespace lodestone::server
