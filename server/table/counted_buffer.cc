#include "server/table/counted_buffer.h"

#include <new>

#include "server/table/slab_pool.h"

namespace lodestone::server {

static_assert(CountedBuffer::kAlignment == SlabPool::kAlignment);

BufferRef BufferRef::New(size_t size_bytes) {
  static_assert(sizeof(CountedBuffer) <= CountedBuffer::kAlignment);
  void* memory = ::operator new (CountedBuffer::kAlignment + size_bytes, std::align_val_t{CountedBuffer::kAlignment});
  BufferRef ref;
  ref.buffer_ = new (memory) CountedBuffer(size_bytes, nullptr, nullptr);
  return ref;
}

BufferRef BufferRef::NewKept(size_t size_bytes) {
#ifdef LODESTONE_SANITIZER
  return New(size_bytes);  // Slabs would hide from it where a buffer ends.
#endif
  const size_t cell = (CountedBuffer::kAlignment + size_bytes + CountedBuffer::kAlignment - 1) /
                      CountedBuffer::kAlignment * CountedBuffer::kAlignment;
  if (cell > SlabPool::kCellBytesMax) return New(size_bytes);
  const SlabPool::Cell memory = SlabPool::For(cell).Allocate();
  BufferRef ref;
  ref.buffer_ = new (memory.memory) CountedBuffer(size_bytes, memory.pool, memory.slab);
  return ref;
}

void BufferRef::Release(CountedBuffer* buffer) {
  if (buffer == nullptr || buffer->references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  const SlabPool::Cell cell{buffer, buffer->pool_, buffer->slab_};
  buffer->~CountedBuffer();
  SlabPool::Free(cell);
}

}  // namespace lodestone::server
