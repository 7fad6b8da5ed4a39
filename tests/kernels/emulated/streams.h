// Streams: queues of what kernels and copies have to do, which are done as late as CUDA allows.
//
// Nothing in a stream runs before the host waits for it, or for something that waits for it through an event. What is
// copied to is NaN from the time when the copy may begin, which is when all before it in its stream has run. So work
// that is not ordered against a copy, before it or behind it, finds NaN, and the host finds NaN where it reads too
// early; a buffer that the host changes too early is copied as it is then.
//
// Not thread-safe: for the thread that holds the runtime's lock.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

// A place in a stream, behind the first `position` of what was ever queued there.
struct EmulatedEvent {
  std::shared_ptr<EmulatedStream> stream;  // Null: never recorded.
  uint64_t position = 0;
};

struct EmulatedStream {
  struct Item {
    std::function<void()> run;
    // Of copies: what they write, which is NaN while they are under way, and what they read in pinned memory.
    void* to = nullptr;
    const void* from_pinned = nullptr;
    size_t bytes = 0;
    // Or the event that the rest of the stream waits for.
    EmulatedEvent awaited;
  };

  std::deque<Item> items;  // Those that have not run.
  uint64_t ran = 0;        // How many have.
  bool first_began = false;

  uint64_t queued() const { return ran + items.size(); }
};

namespace emulated {

std::shared_ptr<EmulatedStream> NewStream();
// Null if there is none.
std::shared_ptr<EmulatedStream> FindStream(cudaStream_t stream);
// Runs all that is in it first. Ends the process if it is the last stream and there is memory that was not given back:
// nothing is left that could do it.
void EndStream(cudaStream_t stream);

void Queue(EmulatedStream* stream, EmulatedStream::Item item);
// Runs the stream up to the place, and of other streams what it waits for.
void RunTo(EmulatedEvent event);
void RunAll();
// As after an error of the device, behind which nothing runs any more.
void DropAll();

}  // namespace emulated
