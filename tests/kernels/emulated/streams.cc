#include "tests/kernels/emulated/streams.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/kernels/emulated/address_spaces.h"

namespace emulated {
namespace {

using Item = EmulatedStream::Item;

std::vector<std::shared_ptr<EmulatedStream>>& Streams() {
  static auto* const streams = new std::vector<std::shared_ptr<EmulatedStream>>;
  return *streams;
}

bool Passed(const EmulatedEvent& event) { return event.stream->ran >= event.position; }

// Whether a copy that is still queued reads some of it.
bool IsRead(const void* memory, size_t bytes) {
  for (const auto& stream : Streams()) {
    for (const Item& item : stream->items) {
      if (item.from_pinned != nullptr && Overlap(item.from_pinned, item.bytes, memory, bytes)) return true;
    }
  }
  return false;
}

void Pop(EmulatedStream* stream) {
  stream->items.pop_front();
  ++stream->ran;
  stream->first_began = false;
}

// Lets streams pass the events that they wait for, if those have come, and copies begin before which all has run.
void Begin() {
  for (bool passed = true; passed;) {
    passed = false;
    for (const auto& stream : Streams()) {
      while (!stream->items.empty() && stream->items.front().awaited.stream != nullptr &&
             Passed(stream->items.front().awaited)) {
        Pop(stream.get());
        passed = true;
      }
    }
  }
  for (const auto& stream : Streams()) {
    if (stream->items.empty() || stream->first_began) continue;
    const Item& item = stream->items.front();
    stream->first_began = true;
    if (item.to != nullptr) Poison(item.to, item.bytes);
  }
}

}  // namespace

std::shared_ptr<EmulatedStream> NewStream() { return Streams().emplace_back(std::make_shared<EmulatedStream>()); }

std::shared_ptr<EmulatedStream> FindStream(cudaStream_t stream) {
  for (const auto& known : Streams()) {
    if (known.get() == stream) return known;
  }
  return nullptr;
}

void EndStream(cudaStream_t stream) {
  RunTo({FindStream(stream), stream->queued()});
  std::erase_if(Streams(), [stream](const auto& known) { return known.get() == stream; });
  if (Streams().empty() && !NothingIsTaken()) EndForMistake("the last stream ends before memory is given back");
}

void Queue(EmulatedStream* stream, Item item) {
  // The host must not read it any more, but copies that were queued before may.
  if (item.to != nullptr && IsHost(item.to, item.bytes) && !IsRead(item.to, item.bytes)) Poison(item.to, item.bytes);
  stream->items.push_back(std::move(item));
  Begin();
}

void RunTo(EmulatedEvent event) {
  while (!Passed(event)) {
    const Item& item = event.stream->items.front();
    if (item.awaited.stream != nullptr) {
      RunTo(item.awaited);  // Which lets this stream pass it.
      continue;
    }
    item.run();
    Pop(event.stream.get());
    Begin();
  }
}

void RunAll() {
  for (const auto& stream : Streams()) RunTo({stream, stream->queued()});
}

void DropAll() {
  for (const auto& stream : Streams()) {
    while (!stream->items.empty()) Pop(stream.get());
  }
}

}  // namespace emulated
