// An array in a backend's memory that only grows, as scratch memory does.
//
// Not thread-safe. The backend must outlive it.
#pragma once

#include <cstddef>
#include <utility>

#include "kernels/backend.h"

namespace lodestone::kernels {

enum class Memory {
  kBackend,  // Where operations run.
  kHost,     // The host's, for copies.
};

template <typename T>
class ScratchArray {
 public:
  explicit ScratchArray(Backend* backend, Memory memory = Memory::kBackend) : backend_(backend), memory_(memory) {}
  ~ScratchArray() { Release(); }
  ScratchArray(ScratchArray&& other) noexcept
      : backend_(other.backend_),
        memory_(other.memory_),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  ScratchArray& operator=(ScratchArray&&) = delete;

  // Does not keep what was in it if it grows. What is still queued must not use it then.
  T* Resize(size_t size) {
    size_ = size;
    if (size <= capacity_) return data_;
    const size_t capacity = data_ == nullptr ? size : size + size / 4;  // Batches differ a little; others never grow.
    Release();
    const size_t bytes = capacity * sizeof(T);
    data_ = static_cast<T*>(memory_ == Memory::kBackend ? backend_->Allocate(bytes) : backend_->AllocateHost(bytes));
    if (data_ != nullptr) capacity_ = capacity;
    return data_;
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T operator[](size_t i) const { return data_[i]; }  // REQUIRES: the memory is the host's.
  size_t size() const { return size_; }

 private:
  void Release() {
    if (data_ == nullptr) return;
    if (memory_ == Memory::kBackend) {
      backend_->Free(data_);
    } else {
      backend_->FreeHost(data_);
    }
    data_ = nullptr;
    capacity_ = 0;
  }

  Backend* const backend_;
  const Memory memory_;
  T* data_ = nullptr;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

}  // namespace lodestone::kernels
