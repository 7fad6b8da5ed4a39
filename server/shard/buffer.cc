#include "server/shard/buffer.h"

#include <new>

namespace lodestone {

BufferRef BufferRef::New(size_t size_bytes) {
  static_assert(sizeof(Buffer) <= Buffer::kAlignment);
  void* memory = ::operator new (Buffer::kAlignment + size_bytes, std::align_val_t{Buffer::kAlignment});
  BufferRef ref;
  ref.buffer_ = new (memory) Buffer(size_bytes);
  return ref;
}

void BufferRef::Release(Buffer* buffer) {
  if (buffer == nullptr || buffer->references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  buffer->~Buffer();
  ::operator delete (buffer, std::align_val_t{Buffer::kAlignment});
}

}  // namespace lodestone
