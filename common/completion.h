// What is waited for at a gRPC completion queue.
#pragma once

#include <memory>
#include <utility>

#include "grpcpp/completion_queue.h"

namespace lodestone {

// An operation's tag. The owner keeps it until OnCompletion was called.
class Completion {
 public:
  virtual ~Completion() = default;
  virtual void OnCompletion(bool ok) = 0;
};

// Runs the completions of `queue` (whose tags are all Completion*) until it was shut down and is empty.
inline void RunCompletions(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<Completion*>(tag)->OnCompletion(ok);
}

// A completion that calls a method of `Stream` and keeps the stream alive until then.
template <typename Stream>
class StreamCompletion final : public Completion {
 public:
  using Method = void (Stream::*)(bool ok);
  explicit StreamCompletion(Method method) : method_(method) {}

  // The tag of an operation of `stream` that is about to start. REQUIRES: no other operation uses it now.
  void* Begin(std::shared_ptr<Stream> stream) {
    stream_ = std::move(stream);
    return static_cast<Completion*>(this);
  }
  void OnCompletion(bool ok) override {
    const std::shared_ptr<Stream> stream = std::move(stream_);
    ((*stream).*method_)(ok);
  }

 private:
  const Method method_;
  std::shared_ptr<Stream> stream_;
};

}  // namespace lodestone
