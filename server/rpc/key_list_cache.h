// The lists of keys that a ps remembers of one stream Exchange (KeyList in parameter_server.proto).
//
// They are copied to memory of their own: what a message lies in may be far larger. A list that is forgotten stays as
// long as calls use it.
//
// Not thread-safe, but streams share a count of bytes. It may outlive who made it, as calls keep their stream.
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

class KeyLists {
 public:
  // `bytes_of_all` is what all streams remember. Whoever wants to remember one more when that
  // is about `bytes_of_all_max` forgets others of its own, or does without.
  explicit KeyLists(std::shared_ptr<std::atomic<size_t>> bytes_of_all, size_t bytes_max = kKeyListBytesPerStream,
                    size_t bytes_of_all_max = kKeyListBytesMax)
      : bytes_of_all_(std::move(bytes_of_all)),
        bytes_max_(bytes_max),
        bytes_of_all_max_(bytes_of_all_max),
        lists_(bytes_max) {}
  ~KeyLists() { bytes_of_all_->fetch_sub(lists_.bytes(), std::memory_order_relaxed); }
  KeyLists(const KeyLists&) = delete;
  KeyLists& operator=(const KeyLists&) = delete;

  // Finds the keys that `list` says a call has, which came with `numbers->payload`: there, or here. `outcome` is what
  // the answer is to say of it, also with an error: INVALID_ARGUMENT, or FAILED_PRECONDITION for a list that is not
  // remembered.
  absl::Status Take(const v1::KeyList& list, RequestPayload* numbers, v1::Answer::Keys* outcome);

 private:
  // False if there is no room.
  bool Remember(const KeyListName& name, const Payload& keys);

  const std::shared_ptr<std::atomic<size_t>> bytes_of_all_;
  const size_t bytes_max_;
  const size_t bytes_of_all_max_;
  KeyListMemory<Payload> lists_;
};

}  // namespace lodestone::server
