// The queue of frames to be written to one stream Exchange. Small ones are packed into one message, so that the cost
// per message is paid once for all that came while the one before was being written.
//
// Not thread-safe: guarded by the stream's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/wire/frame.h"
#include "grpcpp/support/byte_buffer.h"

namespace lodestone {

class Outbox {
 public:
  // Frames are packed together as long as a message weighs less than `pack_bytes`.
  explicit Outbox(size_t pack_bytes) : pack_bytes_(pack_bytes) {}

  void Add(Frame frame);
  bool empty() const { return frames_.empty(); }
  size_t size() const { return frames_.size(); }
  // Whether the frames fill a message: waiting for more gains nothing.
  bool full() const;
  // Bytes of the frames in memory.
  size_t bytes() const { return bytes_; }
  // The same, with their bytes in shared memory.
  size_t weight() const { return weight_; }
  void Clear();

  // Takes frames from the front into a message, at least one and at most limits::kExchangeCallsMax; sets `tags` to
  // theirs. REQUIRES: !empty().
  grpc::ByteBuffer Pack(std::vector<uint64_t>* tags);

 private:
  const size_t pack_bytes_;
  std::deque<Frame> frames_;
  size_t bytes_ = 0;
  size_t weight_ = 0;
};

}  // namespace lodestone
