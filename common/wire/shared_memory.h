// Memory that two processes of one machine have in common: a client makes it and offers it to a ps, which attaches it
// (SharedMemoryOffer in parameter_server.proto). It has no name that could stay behind: it goes with the last of them.
//
// Both are of one user, and each survives the other's death: the size is fixed, so that neither reads beyond the
// end of the file. What lies in it may change at any time, though: nothing that is checked and then relied
// upon belongs there. And a maker who has taken its pages back (no ps or worker does) makes the process that touches
// them allocate new ones.
//
// Thread-safe. Who reads or writes which bytes is for the two to agree upon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "proto/parameter_server.pb.h"

namespace lodestone {

// Bytes at its beginning that hold the offer's secret and hold nothing else: a page.
inline constexpr size_t kSharedMemoryHead = 4096;
// Bytes in all, at most.
inline constexpr size_t kSharedMemoryBytesMax = (64 << 20) + kSharedMemoryHead;

class SharedMemory {
 public:
  // Of `bytes`, of which only the head takes any of the machine's memory yet. UNAVAILABLE, with the reason, if this
  // process cannot have it. REQUIRES: kSharedMemoryHead < bytes <= kSharedMemoryBytesMax.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Make(size_t bytes);
  // What another process of this user has made. UNAVAILABLE, with the reason, if this process cannot reach it;
  // INVALID_ARGUMENT if it is not what the offer says. Nothing is opened that is not called as Make calls its memory.
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Attach(const v1::SharedMemoryOffer& offer);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Good as long as this lives.
  v1::SharedMemoryOffer Offer() const;
  // Sees to it that there is memory behind the first `bytes`, which are not taken away again. RESOURCE_EXHAUSTED if
  // this system says that there is not enough, and from then on for no more than there was. (Where a control group's
  // limit is reached it says nothing, and ends a process.) REQUIRES: Make made this, bytes <= size().
  absl::Status Reserve(size_t bytes);

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  SharedMemory(int fd, uint8_t* data, size_t size) : fd_(fd), data_(data), size_(size) {}

  const int fd_;  // -1 if it was attached.
  uint8_t* const data_;
  const size_t size_;

  Mutex mu_;
  size_t reserved_ ABSL_GUARDED_BY(mu_) = 0;
  bool full_ ABSL_GUARDED_BY(mu_) = false;  // No more could be reserved.
};

}  // namespace lodestone
