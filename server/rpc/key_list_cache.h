// The cache of one stream's lists of keys (KeyList in parameter_server.proto).
//
// Lists are copied to memory of their own, because a message may be far larger than its list. A call keeps its list
// alive after the cache has dropped it.
//
// All streams share a bound. When it is reached, each may hold an equal part of it: a stream that holds more drops
// lists for one that holds less, however long it has been silent.
//
// Thread safety: a cache is used by one thread at a time; a pool is thread-safe. The pool may outlive the Exchange,
// because calls keep their stream.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/wire/key_list.h"
#include "common/wire/message.h"
#include "proto/parameter_server.pb.h"
#include "server/store/request_payload.h"

namespace lodestone::server {

class KeyListCache;

// What the caches of all streams may hold together.
class KeyListPool {
 public:
  explicit KeyListPool(size_t bytes_max = kKeyListBytesMax) : bytes_max_(bytes_max) {}

  // In all caches.
  size_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  friend class KeyListCache;
  void Join(KeyListCache* cache);
  void Leave(KeyListCache* cache);
  // The equal part of each cache.
  size_t Share() const { return bytes_max_ / std::max<size_t>(1, count_.load(std::memory_order_relaxed)); }
  bool HasRoom(size_t bytes) const { return this->bytes() + bytes <= bytes_max_; }
  // Lets caches drop what they hold beyond their share.
  void Trim();

  const size_t bytes_max_;
  std::atomic<size_t> bytes_{0};
  std::atomic<size_t> count_{0};  // Of caches_.
  Mutex mu_;                      // Taken before a cache's.
  absl::flat_hash_set<KeyListCache*> caches_ ABSL_GUARDED_BY(mu_);
};

class KeyListCache {
 public:
  explicit KeyListCache(std::shared_ptr<KeyListPool> pool, size_t bytes_max = kKeyListBytesPerStream)
      : pool_(std::move(pool)), bytes_max_(bytes_max), lists_(bytes_max) {
    pool_->Join(this);
  }
  ~KeyListCache();
  KeyListCache(const KeyListCache&) = delete;
  KeyListCache& operator=(const KeyListCache&) = delete;

  // Sets `numbers->keys` to the list that `list` describes: taken from the front of `numbers->payload`, or cached.
  // `outcome`: what the answer reports of the list, also with an error: INVALID_ARGUMENT, or FAILED_PRECONDITION for a
  // list that is not cached.
  absl::Status Take(const v1::KeyList& list, RequestPayload* numbers, v1::Answer::Keys* outcome);

 private:
  friend class KeyListPool;
  // A cached copy of `keys`; nullopt if there is no room.
  std::optional<Payload> Add(const KeyListName& name, const Payload& keys);
  std::optional<Payload> Find(const KeyListName& name);
  // Drops the oldest lists until the rest takes at most `bytes`.
  void TrimTo(size_t bytes);

  const std::shared_ptr<KeyListPool> pool_;
  const size_t bytes_max_;
  Mutex mu_;
  KeyListMemory<Payload> lists_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
