// The memory of what broadcasts keep until it is sent: snapshots of shards, and changes of rows.
//
// What is large has a line: one always goes on, and others have their turn. What is small never waits; it counts, and
// leaves the line less room, so that the line is for what is large alone.
//
// Thread-safe, as MemoryLine.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "common/base/limits.h"
#include "common/base/time_source.h"
#include "server/store/memory_line.h"

namespace lodestone::server {

class PinnedBytes;

// Held by shared pointers only.
class BroadcastMemory : public std::enable_shared_from_this<BroadcastMemory> {
 public:
  // As MemoryLine's.
  BroadcastMemory(std::function<uint64_t()> bytes_max, const TimeSource* time)
      : bytes_max_(std::move(bytes_max)),
        large_(
            [this] {
              const uint64_t all = bytes_max_();
              return all - std::min(all, small_bytes_.load());
            },
            time) {}

  static bool IsLarge(uint64_t bytes) { return bytes > limits::kSmallChangesBytes; }
  const MemoryLine& large() const { return large_; }

  // Room for something large, which counts for as long as it is kept. Null: there is none, or others wait.
  using Room = std::shared_ptr<PinnedBytes>;
  Room Ask(uint64_t bytes);
  // Calls `go_on` with it once it has its turn, perhaps from within, as long as the owner lives. REQUIRES: as Give.
  void Await(uint64_t bytes, std::weak_ptr<const void> owner, std::function<void(Room)> go_on);

  uint64_t bytes() const { return small_bytes_.load() + large_.bytes(); }
  // Nobody waits, and not all is taken.
  bool has_room() const { return large_.waiting() == 0 && large_.bytes() < large_.bytes_max(); }

  // Count, and give back, what one change or snapshot keeps. Give: as MemoryLine's.
  void Take(uint64_t bytes) {
    if (IsLarge(bytes)) return large_.Take(bytes);
    small_bytes_ += bytes;
  }
  void Give(uint64_t bytes) {
    if (IsLarge(bytes)) return large_.Give(bytes);
    small_bytes_ -= bytes;
    large_.Settle();
  }

 private:
  const std::function<uint64_t()> bytes_max_;
  std::atomic<uint64_t> small_bytes_{0};
  MemoryLine large_;
};

// Bytes that count there for as long as this lives.
class PinnedBytes {
 public:
  enum class Counted { kNow, kAlready };
  // REQUIRES: who ends it, or releases it, holds no lock that the callbacks of those that wait may take.
  PinnedBytes(std::shared_ptr<BroadcastMemory> memory, uint64_t bytes, Counted counted = Counted::kNow)
      : memory_(std::move(memory)), bytes_(bytes) {
    if (counted == Counted::kNow) memory_->Take(bytes_);
  }
  ~PinnedBytes() { Release(); }
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;

  // They count no more.
  void Release() {
    if (const uint64_t bytes = std::exchange(bytes_, 0); bytes > 0) memory_->Give(bytes);
  }

 private:
  const std::shared_ptr<BroadcastMemory> memory_;
  uint64_t bytes_;
};

inline BroadcastMemory::Room BroadcastMemory::Ask(uint64_t bytes) {
  if (!large_.Ask(bytes)) return nullptr;
  return std::make_shared<PinnedBytes>(shared_from_this(), bytes, PinnedBytes::Counted::kAlready);
}

inline void BroadcastMemory::Await(uint64_t bytes, std::weak_ptr<const void> owner, std::function<void(Room)> go_on) {
  // Without a pointer that owns this: it would keep itself.
  const auto call = [this, bytes, go_on = std::move(go_on)] {
    go_on(std::make_shared<PinnedBytes>(shared_from_this(), bytes, PinnedBytes::Counted::kAlready));
  };
  large_.Await(bytes, call, std::move(owner));
  large_.Settle();
}

}  // namespace lodestone::server
