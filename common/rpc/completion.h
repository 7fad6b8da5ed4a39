// The tag of an operation on a gRPC completion queue.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "grpcpp/completion_queue.h"

namespace lodestone {

// An operation's tag. The owner keeps it until it was run.
//
// What was done before Begin is visible to the thread that runs it: gRPC sees to that, and the atomic lets the thread
// sanitizer, which does not see into gRPC, know it too.
class Completion {
 public:
  using Run = void (*)(Completion* completion, bool ok);

  // The tag of an operation that is about to start.
  void* Begin(Run run) {
    run_.store(run, std::memory_order_release);
    return this;
  }
  void Complete(bool ok) { run_.load(std::memory_order_acquire)(this, ok); }

 private:
  std::atomic<Run> run_{nullptr};
};

// Runs the completions of `queue` (whose tags are all Completion*) until it was shut down and is empty.
inline void RunCompletions(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<Completion*>(tag)->Complete(ok);
}

// A completion that calls a method of `Stream` and keeps the stream alive until then.
template <typename Stream>
class StreamCompletion final : private Completion {
 public:
  using Method = void (Stream::*)(bool ok);
  explicit StreamCompletion(Method method) : method_(method) {}

  // The tag of an operation of `stream` that is about to start. REQUIRES: no other operation uses it now.
  void* Begin(std::shared_ptr<Stream> stream) {
    stream_ = std::move(stream);
    return Completion::Begin([](Completion* completion, bool ok) {
      auto* const self = static_cast<StreamCompletion*>(completion);
      const std::shared_ptr<Stream> stream = std::move(self->stream_);
      ((*stream).*(self->method_))(ok);
    });
  }

 private:
  const Method method_;
  std::shared_ptr<Stream> stream_;
};

}  // namespace lodestone
