#include "server/table/buffer.h"

#include <new>

#include "server/table/slab_pool.h"

namespace lodestone::server {

static_assert(Buffer::kAlignment == SlabPool::kAlignment);

BufferRef BufferRef::New(size_t size_bytes) {
  static_assert(sizeof(Buffer) <= Buffer::kAlignment);
  void* memory = ::operator new (Buffer::kAlignment + size_bytes, std::align_val_t{Buffer::kAlignment});
  BufferRef ref;
  ref.buffer_ = new (memory) Buffer(size_bytes, nullptr, nullptr);
  return ref;
}

BufferRef BufferRef::NewKept(size_t size_bytes) {
#ifdef LODESTONE_SANITIZER
  return New(size_bytes);  // Slabs would hide from it where a buffer ends.
#endif
  const size_t cell =
      (Buffer::kAlignment + size_bytes + Buffer::kAlignment - 1) / Buffer::kAlignment * Buffer::kAlignment;
  if (cell > SlabPool::kCellBytesMax) return New(size_bytes);
  const SlabPool::Cell memory = SlabPool::For(cell).Allocate();
  BufferRef ref;
  ref.buffer_ = new (memory.memory) Buffer(size_bytes, memory.pool, memory.slab);
  return ref;
}

void BufferRef::Release(Buffer* buffer) {
  if (buffer == nullptr || buffer->references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const SlabPool::Cell cell{buffer, buffer->pool_, buffer->slab_};
  buffer->~Buffer();
  SlabPool::Free(cell);
}

}  // namespace lodestone::server
