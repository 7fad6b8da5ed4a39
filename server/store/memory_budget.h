// The bytes that the tables of a ps may take: server.memory_max_bytes for all of them, TableSpec.memory_max_bytes for
// each. Room is reserved before something is added, so that what is under way counts too.
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
  // `bytes_max`: of all tables; 0: no limit. `table_bytes`: what they take now.
  MemoryBudget(uint64_t bytes_max, std::function<uint64_t()> table_bytes)
      : bytes_max_(bytes_max), table_bytes_(std::move(table_bytes)) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  uint64_t bytes_max() const { return bytes_max_; }
  // Whether there is a limit for the table, its own or the ps's.
  bool Bounds(const Table& table) const;

 private:
  friend class MemoryReservation;
  absl::Status Reserve(Table* table, uint64_t bytes, uint64_t spare);
  void ReserveAnyway(Table* table, uint64_t bytes);
  void Release(Table* table, uint64_t bytes);
  absl::Status Check(const Table& table, uint64_t bytes, uint64_t spare) const;

  const uint64_t bytes_max_;
  const std::function<uint64_t()> table_bytes_;
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
