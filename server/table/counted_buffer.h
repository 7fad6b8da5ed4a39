// Reference-counted, aligned memory: what blocks and pages are made of.
//
// A CountedBuffer is written only by a shard's executor, and only while it holds the one reference
// (`BufferRef::unique`); every holder of another reference reads bytes that never change.
//
// Thread safety: references are counted atomically; a single BufferRef is not safe for concurrent use.
// Ownership: the last BufferRef frees the memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace lodestone::server {

struct Slab;
class SlabPool;

class BufferRef;

// The memory itself; handled through BufferRef.
class CountedBuffer {
 public:
  // Two cache lines: processors fetch them in pairs, and a row of values and state of the usual size is one.
  static constexpr size_t kAlignment = 128;

  CountedBuffer(const CountedBuffer&) = delete;
  CountedBuffer& operator=(const CountedBuffer&) = delete;

  uint8_t* bytes() { return reinterpret_cast<uint8_t*>(this) + kAlignment; }
  float* floats() { return reinterpret_cast<float*>(bytes()); }
  size_t size_bytes() const { return size_bytes_; }

 private:
  friend class BufferRef;
  CountedBuffer(size_t size_bytes, SlabPool* pool, Slab* slab) : size_bytes_(size_bytes), pool_(pool), slab_(slab) {}

  std::atomic<uint32_t> references_{1};
  const size_t size_bytes_;
  SlabPool* const pool_;  // Where the memory is from: SlabPool::Cell.
  Slab* const slab_;
};

// A counted reference to a CountedBuffer, or null.
class BufferRef {
 public:
  // A fresh, uninitialised buffer. When memory is exhausted, std::bad_alloc ends the process: it is not caught.
  static BufferRef New(size_t size_bytes);
  // The same for what stays: a block or a page, of which there are many of one size.
  static BufferRef NewKept(size_t size_bytes);

  BufferRef() = default;
  BufferRef(const BufferRef& other) : buffer_(other.buffer_) {
    if (buffer_ != nullptr) buffer_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  BufferRef(BufferRef&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}
  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~BufferRef() { Release(buffer_); }

  explicit operator bool() const { return buffer_ != nullptr; }
  CountedBuffer* operator->() const { return buffer_; }
  // True if this is the only reference; what other holders did before they let go has then happened.
  bool unique() const { return buffer_->references_.load(std::memory_order_acquire) == 1; }

  // Gives the reference away as a plain pointer, to be given back to `Release`.
  CountedBuffer* Leak() { return std::exchange(buffer_, nullptr); }
  static void Release(CountedBuffer* buffer);

 private:
  CountedBuffer* buffer_ = nullptr;
};

}  // namespace lodestone::server
