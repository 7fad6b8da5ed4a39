// Memory that a client of this machine shares with one stream Exchange: gradients that are read from it, values that
// are put there. Only values lie in it: what a call is, and its keys, come in messages, where nobody changes them any
// more.
//
// Not thread-safe; what it hands out is, and lives as long as it is wanted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/message.h"
#include "common/wire/shared_memory.h"
#include "grpcpp/support/slice.h"
#include "proto/parameter_server.pb.h"
#include "server/store/request_payload.h"

namespace lodestone::server {

// What a ps does with memory that it is offered.
enum class SharedUse {
  kRefused,
  kCopied,  // Gradients are copied as they come: they are read after the answer too, by logs or followers.
  kRead,    // They are read where they lie.
};

class SharedValues {
 public:
  // `peer`: what logs call the client.
  explicit SharedValues(std::string peer) : peer_(std::move(peer)) {}

  // From now on calls are those of another message. What has been attached stays, but for kRefused.
  void BeginMessage(SharedUse use);

  // Attaches the memory that a call offers, if it may be and can be; what the answer is to say of that.
  v1::Answer::SharedMemory Accept(const v1::SharedMemoryOffer& offer);

  // Bytes that Take will copy for `call`.
  uint64_t CopiedBytes(const v1::Call& call) const { return use_ == SharedUse::kCopied ? call.values().bytes() : 0; }

  // Finds the values that `call` says are in the memory, if it does. `numbers` has what came in the message: no values
  // then, and the keys apart if there are any. INVALID_ARGUMENT, with the range, if that is not so, or it is no range
  // of the memory.
  absl::Status Take(const v1::Call& call, RequestPayload* numbers);

  // Where an answer's values may go.
  struct Room {
    std::shared_ptr<SharedMemory> memory;  // Null: nowhere.
    uint64_t offset = 0;
    uint64_t bytes = 0;

    // Moves the values there and returns their bytes; 0, and nothing happens, if there is no room for them.
    uint64_t Put(std::vector<grpc::Slice>* values) const;
  };
  // As Take, of what `call` says of room.
  absl::Status TakeRoom(const v1::Call& call, Room* room) const;

 private:
  absl::Status CheckRange(const v1::SharedRange& range) const;

  const std::string peer_;
  SharedUse use_ = SharedUse::kRefused;
  bool offered_ = false;
  uint64_t message_bytes_ = 0;            // That the message's calls have in the memory.
  std::shared_ptr<SharedMemory> memory_;  // Null: nothing is shared.
};

}  // namespace lodestone::server
