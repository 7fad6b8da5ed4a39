// The cache of one stream's lists of keys (KeyList in parameter_server.proto).
//
// Lists are copied to memory of their own, because a message may be far larger than its list. A call keeps its list
// alive after the cache has dropped it.
//
// Not thread-safe; the streams' caches share a count of bytes. It may outlive the Exchange, because calls keep their
// stream.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/wire/key_list.h"
#include "common/wire/message.h"
#include "proto/parameter_server.pb.h"
#include "server/store/request_payload.h"

namespace lodestone::server {

class KeyListCache {
 public:
  // `bytes_of_all`: the bytes in the caches of all streams. When it reaches about `bytes_of_all_max`, a cache drops
  // lists of its own to add another, or does not add it.
  explicit KeyListCache(std::shared_ptr<std::atomic<size_t>> bytes_of_all, size_t bytes_max = kKeyListBytesPerStream,
                        size_t bytes_of_all_max = kKeyListBytesMax)
      : bytes_of_all_(std::move(bytes_of_all)),
        bytes_max_(bytes_max),
        bytes_of_all_max_(bytes_of_all_max),
        lists_(bytes_max) {}
  ~KeyListCache() { bytes_of_all_->fetch_sub(lists_.bytes(), std::memory_order_relaxed); }
  KeyListCache(const KeyListCache&) = delete;
  KeyListCache& operator=(const KeyListCache&) = delete;

  // Sets `numbers->keys` to the list that `list` describes: taken from the front of `numbers->payload`, or cached.
  // `outcome`: what the answer reports of the list, also with an error: INVALID_ARGUMENT, or FAILED_PRECONDITION for a
  // list that is not cached.
  absl::Status Take(const v1::KeyList& list, RequestPayload* numbers, v1::Answer::Keys* outcome);

 private:
  // False if there is no room.
  bool Add(const KeyListName& name, const Payload& keys);

  const std::shared_ptr<std::atomic<size_t>> bytes_of_all_;
  const size_t bytes_max_;
  const size_t bytes_of_all_max_;
  KeyListMemory<Payload> lists_;
};

}  // namespace lodestone::server
