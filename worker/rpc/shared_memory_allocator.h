// A first-fit allocator of ranges in the memory that a stream shares with a ps. Each range belongs to one call.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "common/base/mutex.h"
#include "common/wire/shared_memory.h"
#include "proto/parameter_server.pb.h"

namespace lodestone::worker {

class SharedMemoryAllocator {
 public:
  // A range, to be given back once neither side uses it. One that the other side may still use is never given back, and
  // stays taken for the memory's life.
  struct Range {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint8_t* data = nullptr;  // Valid as long as the memory.
  };

  explicit SharedMemoryAllocator(std::shared_ptr<SharedMemory> memory);
  SharedMemoryAllocator(const SharedMemoryAllocator&) = delete;
  SharedMemoryAllocator& operator=(const SharedMemoryAllocator&) = delete;

  // The lowest free range of `bytes` >= 1, so that no more memory is touched than needed. Nothing if there is none, or
  // the machine has no memory for it.
  std::optional<Range> Take(uint64_t bytes);
  void GiveBack(const Range& range);

  SharedMemory* memory() const { return memory_.get(); }

 private:
  // The size of a range of `bytes`: whole cache lines.
  static uint64_t Rounded(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

  const std::shared_ptr<SharedMemory> memory_;
  Mutex mu_;
  std::map<uint64_t, uint64_t> free_ ABSL_GUARDED_BY(mu_);  // Bytes by offset; no two of them touch.
};

// The range as it stands in a message.
inline v1::SharedRange ToProto(const SharedMemoryAllocator::Range& range) {
  v1::SharedRange proto;
  proto.set_offset(range.offset);
  proto.set_bytes(range.bytes);
  return proto;
}

}  // namespace lodestone::worker
