#include "server/table/slab_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace lodestone::server {
namespace {

constexpr size_t kHugePageBytes = 2 << 20;
constexpr size_t kSlabBytesMax = 32 << 20;
constexpr size_t kWasteShare = 32;  // A slab may waste one part in this at its end.

void* PlainAllocate(size_t bytes) { return ::operator new (bytes, std::align_val_t{SlabPool::kAlignment}); }
void PlainFree(void* memory) { ::operator delete (memory, std::align_val_t{SlabPool::kAlignment}); }

// Zeros that begin at a huge page's boundary. The kernel makes huge pages only where the mapping covers them whole.
void* MapHuge(size_t bytes) {
  const size_t mapped = bytes + kHugePageBytes;
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
  // The last boundary that leaves room. Mappings grow downwards, so what is given back lies before this one, where the
  // next takes it: they stay adjacent, and the kernel counts them as one (it has 65530 for a process).
  const uintptr_t aligned = (begin / kHugePageBytes + 1) * kHugePageBytes;
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t end = (aligned + bytes + page - 1) / page * page;
  munmap(memory, aligned - begin);
  if (begin + mapped > end) munmap(reinterpret_cast<void*>(end), begin + mapped - end);
  // Refused where the kernel has no huge pages, which is as well.
  madvise(reinterpret_cast<void*>(aligned), bytes, MADV_HUGEPAGE);
  return reinterpret_cast<void*>(aligned);
}

// A multiple of huge pages that cells fill nearly whole.
size_t SlabBytesFor(size_t cell_bytes) {
  for (size_t bytes = kHugePageBytes; bytes < kSlabBytesMax; bytes *= 2) {
    if (bytes >= cell_bytes && bytes % cell_bytes <= bytes / kWasteShare) return bytes;
  }
  return kSlabBytesMax;
}

}  // namespace

void LargeDelete::operator()(void* memory) const {
  if (bytes < kHugePageBytes) {
    PlainFree(memory);
  } else {
    munmap(memory, bytes);
  }
}

LargeMemory AllocateZeroed(size_t bytes) {
  if (bytes >= kHugePageBytes) return LargeMemory(MapHuge(bytes), LargeDelete{bytes});
  void* const memory = PlainAllocate(bytes);
  std::memset(memory, 0, bytes);
  return LargeMemory(memory, LargeDelete{bytes});
}

// Guarded by its pool's mutex.
struct Slab {
  uint8_t* const begin;
  size_t used = 0;       // Cells.
  size_t cut = 0;        // Cells that were ever used: the first ones.
  void* free = nullptr;  // Those of them that are free, each beginning with a pointer to the next.
};

SlabPool& SlabPool::For(size_t cell_bytes) {
  static Mutex mu;
  static auto* const pools = new absl::flat_hash_map<size_t, std::unique_ptr<SlabPool>>;
  MutexLock lock(&mu);
  std::unique_ptr<SlabPool>& pool = (*pools)[cell_bytes];
  if (pool == nullptr) pool = std::make_unique<SlabPool>(cell_bytes);
  return *pool;
}

SlabPool::SlabPool(size_t cell_bytes) : cell_bytes_(cell_bytes), slab_bytes_(SlabBytesFor(cell_bytes)) {}

SlabPool::~SlabPool() {
  for (Slab* slab : open_) {
    munmap(slab->begin, slab_bytes_);
    delete slab;
  }
}

Slab* SlabPool::MakeSlab() {
  ++slab_count_;
  return new Slab{static_cast<uint8_t*>(MapHuge(slab_bytes_))};
}

SlabPool::Cell SlabPool::Allocate() {
  MutexLock lock(&mu_);
  if (open_.empty() && plain_bytes_ < kPlainBytes) {
    plain_bytes_ += cell_bytes_;
    return {PlainAllocate(cell_bytes_), this, nullptr};
  }
  if (open_.empty()) open_.push_back(MakeSlab());
  Slab* const slab = open_.back();
  void* memory = slab->free;
  if (memory != nullptr) {
    std::memcpy(&slab->free, memory, sizeof(slab->free));
  } else {
    memory = slab->begin + slab->cut++ * cell_bytes_;
  }
  if (++slab->used == slab_bytes_ / cell_bytes_) open_.pop_back();
  return {memory, this, slab};
}

void SlabPool::Free(Cell cell) {
  if (cell.slab != nullptr) return cell.pool->FreeIn(cell.slab, cell.memory);
  if (cell.pool != nullptr) {
    MutexLock lock(&cell.pool->mu_);
    cell.pool->plain_bytes_ -= cell.pool->cell_bytes_;
  }
  PlainFree(cell.memory);
}

void SlabPool::FreeIn(Slab* slab, void* memory) {
  {
    MutexLock lock(&mu_);
    std::memcpy(memory, &slab->free, sizeof(slab->free));
    slab->free = memory;
    if (slab->used-- == slab_bytes_ / cell_bytes_) open_.push_back(slab);
    // The last open slab stays, so that a cell that comes and goes costs no call of the kernel.
    if (slab->used > 0 || open_.size() == 1) return;
    open_.erase(std::find(open_.begin(), open_.end(), slab));
    --slab_count_;
  }
  munmap(slab->begin, slab_bytes_);
  delete slab;
}

size_t SlabPool::slab_bytes() const {
  MutexLock lock(&mu_);
  return slab_count_ * slab_bytes_;
}

}  // namespace lodestone::server
