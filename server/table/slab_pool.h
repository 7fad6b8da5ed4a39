// Memory for what a ps keeps: blocks, pages and indexes, on huge pages where the kernel has them (a random row then
// costs one cache miss, not one for the page table too).
//
// Small tables must not take large pages: an array lies on huge pages only as far as it fills them, and a slab pool
// hands out plain memory as long as less than kPlainBytes of it is in use.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/mutex.h"

namespace lodestone::server {

// Frees what AllocateZeroed gave.
struct LargeDelete {
  size_t bytes = 0;
  void operator()(void* memory) const;
};
using LargeMemory = std::unique_ptr<void, LargeDelete>;

// `bytes` of zeros, aligned to SlabPool::kAlignment. When memory is exhausted it throws std::bad_alloc, as operator new
// does, which is not caught: the process ends.
LargeMemory AllocateZeroed(size_t bytes);

// The kernel gives a slab's memory one huge page after the other, as cells are first used.
struct Slab;

// Cells of one size, cut from slabs that are returned when all of their cells are free.
class SlabPool {
 public:
  static constexpr size_t kAlignment = 128;
  // What is in use of a pool's plain memory before it makes slabs.
  static constexpr size_t kPlainBytes = 8 << 20;
  // Cells are at most this large; larger memory is plain.
  static constexpr size_t kCellBytesMax = 4 << 20;

  // The process's pool for cells of `cell_bytes`. REQUIRES: cell_bytes is a multiple of kAlignment.
  static SlabPool& For(size_t cell_bytes);

  explicit SlabPool(size_t cell_bytes);
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;
  // REQUIRES: all cells have been freed.
  ~SlabPool();

  // A cell, uninitialised and aligned to kAlignment, and where it is from. When memory is exhausted, as AllocateZeroed.
  struct Cell {
    void* memory = nullptr;
    SlabPool* pool = nullptr;  // Null if it is of none: from operator new with kAlignment.
    Slab* slab = nullptr;      // Null if it is plain.
  };
  Cell Allocate();
  // Returns a cell to the pool that it is of.
  static void Free(Cell cell);

  // Bytes that slabs span.
  size_t slab_bytes() const;

 private:
  Slab* MakeSlab() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FreeIn(Slab* slab, void* memory);

  // Constant after construction.
  const size_t cell_bytes_;
  const size_t slab_bytes_;

  mutable Mutex mu_;
  size_t plain_bytes_ ABSL_GUARDED_BY(mu_) = 0;   // In use.
  std::vector<Slab*> open_ ABSL_GUARDED_BY(mu_);  // Slabs with a free cell.
  size_t slab_count_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lodestone::server
