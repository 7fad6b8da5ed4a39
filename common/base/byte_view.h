// Bytes that lie in several runs of memory, one after the other: a received message as gRPC's slices hold it.
//
// A view borrows the bytes and the list of runs. Copying one is cheap. Thread-safe as an immutable value is; Take
// changes the view it is called on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace lodestone {

class ByteView {
 public:
  struct Run {
    const uint8_t* data = nullptr;
    size_t size = 0;
  };

  ByteView() = default;
  // One run.
  ByteView(const uint8_t* data, size_t size) : first_{data, size}, size_(size) {}
  // Several, in order; `runs` must outlive the view and all that are made of it.
  explicit ByteView(std::span<const Run> runs) : next_(runs.data()) {
    for (const Run& run : runs) size_ += run.size;
    if (size_ > 0) Fill();
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  // All bytes, if they lie in one run; null otherwise.
  const uint8_t* contiguous() const { return first_.size == size_ ? first_.data : nullptr; }
  // The bytes at the front that lie together; of size 0 only if the view is empty.
  Run front() const { return first_; }

  // Removes the first `n` bytes and returns them. REQUIRES: n <= size().
  ByteView Take(size_t n) {
    ByteView taken = *this;
    taken.size_ = n;
    taken.first_.size = std::min(taken.first_.size, n);
    Drop(n);
    return taken;
  }

  void CopyTo(void* dst) const {
    auto* to = static_cast<uint8_t*>(dst);
    for (ByteView rest = *this; !rest.empty(); rest.Drop(rest.first_.size)) {
      std::memcpy(to, rest.first_.data, rest.first_.size);
      to += rest.first_.size;
    }
  }

  // Calls visit(data, count) for runs of `count` >= 1 elements of type T, unaligned, in order. An element that lies in
  // several runs of memory is copied and visited alone. REQUIRES: size() is a multiple of sizeof(T).
  template <typename T, typename Visit>
  void ForEachRun(const Visit& visit) const {
    for (ByteView rest = *this; !rest.empty();) {
      const size_t count = rest.first_.size / sizeof(T);
      if (count > 0) {
        visit(rest.first_.data, count);
        rest.Drop(count * sizeof(T));
        continue;
      }
      uint8_t element[sizeof(T)];
      rest.Take(sizeof(T)).CopyTo(element);
      visit(static_cast<const uint8_t*>(element), size_t{1});
    }
  }

  // Element `i` of the unaligned little-endian T that the view holds. Walks over the runs before it.
  template <typename T>
  T Load(size_t i) const {
    ByteView rest = *this;
    rest.Drop(i * sizeof(T));
    T value;
    rest.Take(sizeof(T)).CopyTo(&value);
    return value;
  }

 private:
  void Drop(size_t n) {
    while (n > 0 && n >= first_.size) {
      n -= first_.size;
      size_ -= first_.size;
      first_ = {};
      if (size_ == 0) return;
      Fill();
    }
    first_.data += n;
    first_.size -= n;
    size_ -= n;
  }
  // Moves to the next run that is not empty, cut to the view. REQUIRES: there is one.
  void Fill() {
    do {
      first_ = *next_++;
    } while (first_.size == 0);
    first_.size = std::min(first_.size, size_);
  }

  Run first_;                  // What is left of the current run, cut to the view.
  const Run* next_ = nullptr;  // The runs after it.
  size_t size_ = 0;
};

}  // namespace lodestone
