// The bytes that the tables of a ps may take: TableSpec.memory_max_bytes each, and all of them what the rest of the
// process leaves of server.memory_max_bytes. Room is reserved before something is added, so that what is under way
// counts too.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace lodestone::server {

class Table;

class MemoryBudget {
 public:
  // `bytes_max`: of the process; 0: no limit. `table_bytes`: what all tables take now; `process_bytes`: what the
  // process does, tables included. Null: tables alone count.
  MemoryBudget(uint64_t bytes_max, std::function<uint64_t()> table_bytes, std::function<uint64_t()> process_bytes)
      : bytes_max_(bytes_max), table_bytes_(std::move(table_bytes)), process_bytes_(std::move(process_bytes)) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // Looks at what the process takes: about once a second, and by itself whenever the tables have grown much.
  void Sample();
  // What all tables may take: what the rest of the process leaves, and half of the limit at least. 0: no limit.
  uint64_t tables_bytes_max() const;
  // Whether there is a limit for the table, its own or the ps's.
  bool Bounds(const Table& table) const;

 private:
  friend class MemoryReservation;
  void SampleIfGrown();
  absl::Status Reserve(Table* table, uint64_t bytes, uint64_t spare);
  void ReserveAnyway(Table* table, uint64_t bytes);
  void Release(Table* table, uint64_t bytes);
  absl::Status Check(const Table& table, uint64_t bytes, uint64_t spare) const;

  const uint64_t bytes_max_;
  const std::function<uint64_t()> table_bytes_;
  const std::function<uint64_t()> process_bytes_;
  // When they were looked at last:
  std::atomic<uint64_t> sampled_table_bytes_{0};
  std::atomic<uint64_t> other_bytes_{0};  // what the process took beside its tables.
  std::atomic<uint64_t> reserved_{0};
};

// Room that is reserved until this is destroyed, or released: when the tables' own counts have what was added.
class MemoryReservation {
 public:
  // `budget` must outlive it.
  explicit MemoryReservation(MemoryBudget* budget) : budget_(budget) {}
  ~MemoryReservation() { Release(); }
  MemoryReservation(const MemoryReservation&) = delete;
  MemoryReservation& operator=(const MemoryReservation&) = delete;

  // RESOURCE_EXHAUSTED, naming the table and the limit, if there is no room for that, or not `spare` more, which is not
  // reserved. What needs nothing has room.
  absl::Status Add(Table* table, uint64_t bytes, uint64_t spare = 0);
  // Over the limit too.
  void AddAnyway(Table* table, uint64_t bytes);
  void Release();

 private:
  MemoryBudget* const budget_;
  std::vector<std::pair<Table*, uint64_t>> parts_;
};

}  // namespace lodestone::server
