#include "worker/rpc/shared_memory_allocator.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lodestone::worker {

SharedMemoryAllocator::SharedMemoryAllocator(std::shared_ptr<SharedMemory> memory) : memory_(std::move(memory)) {
  free_[kSharedMemoryHead] = (memory_->size() - kSharedMemoryHead) / 64 * 64;
}

std::optional<SharedMemoryAllocator::Range> SharedMemoryAllocator::Take(uint64_t bytes) {
  Range range{0, bytes, nullptr};
  {
    MutexLock lock(&mu_);
    if (bytes > memory_->size()) return std::nullopt;
    const uint64_t taken = Rounded(bytes);
    const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& gap) { return gap.second >= taken; });
    if (found == free_.end()) return std::nullopt;
    range.offset = found->first;
    range.data = memory_->data() + range.offset;
    const uint64_t left = found->second - taken;
    free_.erase(found);
    if (left > 0) free_[range.offset + taken] = left;
  }
  if (memory_->Reserve(range.offset + bytes).ok()) return range;
  GiveBack(range);
  return std::nullopt;
}

void SharedMemoryAllocator::GiveBack(const Range& range) {
  MutexLock lock(&mu_);
  uint64_t offset = range.offset;
  uint64_t bytes = Rounded(range.bytes);
  const auto after = free_.lower_bound(offset);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  if (after != free_.end() && after->first == range.offset + Rounded(range.bytes)) {
    bytes += after->second;
    free_.erase(after);
  }
  free_[offset] = bytes;
}

}  // namespace lodestone::worker
