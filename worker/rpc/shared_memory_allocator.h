// Divides memory that a stream shares with a ps into ranges, of which each belongs to one call.
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

class SharedRanges {
 public:
  // A range. Whoever took it gives it back once neither side uses it any more. One that is never given back stays taken
  // for the memory's life, as it must if nobody knows whether the other side still uses it.
  struct Range {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint8_t* data = nullptr;  // Good as long as the memory is.
  };

  explicit SharedRanges(std::shared_ptr<SharedMemory> memory);
  SharedRanges(const SharedRanges&) = delete;
  SharedRanges& operator=(const SharedRanges&) = delete;

  // The lowest range of `bytes` >= 1 that is free, so that no more memory is used than need be. Nothing if there is
  // none, or the machine has no memory for it.
  std::optional<Range> Take(uint64_t bytes);
  void GiveBack(const Range& range);

  SharedMemory* memory() const { return memory_.get(); }

 private:
  // What a range of `bytes` takes: whole cache lines.
  static uint64_t Rounded(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

  const std::shared_ptr<SharedMemory> memory_;
  Mutex mu_;
  std::map<uint64_t, uint64_t> free_ ABSL_GUARDED_BY(mu_);  // Bytes by offset; no two of them touch.
};

// How a message names it.
inline v1::SharedRange ToProto(const SharedRanges::Range& range) {
  v1::SharedRange proto;
  proto.set_offset(range.offset);
  proto.set_bytes(range.bytes);
  return proto;
}

}  // namespace lodestone::worker
