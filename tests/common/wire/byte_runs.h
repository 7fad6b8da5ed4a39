// Bytes cut into runs that lie apart, as a received message's slices do.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/base/byte_view.h"

namespace lodestone::server {

// A copy of some bytes in runs, each of its own size exactly, so that asan sees a read outside of it. Outlives its
// views.
class ByteRuns {
 public:
  // Runs of `run_bytes`, the last one shorter.
  ByteRuns(const void* bytes, size_t size, size_t run_bytes) {
    for (size_t at = 0; at < size; at += run_bytes) Add(bytes, at, std::min(run_bytes, size - at));
  }
  // Runs of random lengths from 0 to `run_bytes_max`.
  ByteRuns(const void* bytes, size_t size, size_t run_bytes_max, std::mt19937* random) {
    for (size_t at = 0; at < size;) {
      const size_t length = std::min<size_t>((*random)() % (run_bytes_max + 1), size - at);
      Add(bytes, at, length);
      at += length;
    }
  }

  ByteView view() const { return ByteView(runs_); }

 private:
  void Add(const void* bytes, size_t at, size_t size) {
    copies_.push_back(std::make_unique<uint8_t[]>(size));
    if (size > 0) std::memcpy(copies_.back().get(), static_cast<const uint8_t*>(bytes) + at, size);
    runs_.push_back({copies_.back().get(), size});
  }

  std::vector<std::unique_ptr<uint8_t[]>> copies_;
  std::vector<ByteView::Run> runs_;
};

}  // namespace lodestone::server
