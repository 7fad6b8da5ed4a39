// The memory that a client of this machine shares with one stream Exchange: it holds the gradients of pushes and has
// room for the values of answers. Headers and keys always come in messages, where the client cannot change them while
// the ps checks and uses them.
//
// Not thread-safe; a Room is, and keeps the memory alive, as payloads do.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/message.h"
#include "common/wire/shared_memory.h"
#include "grpcpp/support/slice.h"
#include "proto/parameter_server.pb.h"
#include "server/store/request_payload.h"

namespace lodestone::server {

// The policy of a ps for memory that it is offered.
enum class SharedUse {
  kRefused,
  kCopied,  // Gradients are copied when they arrive, because logs or followers read them after the answer too.
  kRead,    // Gradients are read in place.
};

class SharedValues {
 public:
  // `peer`: the client's name in logs.
  explicit SharedValues(std::string peer) : peer_(std::move(peer)) {}

  // Begins another message: the calls that follow are its. Attached memory stays, except with kRefused.
  void BeginMessage(SharedUse use);

  // Attaches the memory that a call offers, if that is allowed and possible. Returns the answer's report of it.
  v1::Answer::SharedMemory Accept(const v1::SharedMemoryOffer& offer);

  // Bytes that Take copies for `call`.
  uint64_t CopiedBytes(const v1::Call& call) const { return use_ == SharedUse::kCopied ? call.values().bytes() : 0; }

  // Sets `numbers->payload` to the values that `call` has in the memory, if any. `numbers` has what came in the
  // message: no values then, and rows only with a list of keys. INVALID_ARGUMENT, naming the range, if that does not
  // hold, or the range is not one of the memory.
  absl::Status Take(const v1::Call& call, RequestPayload* numbers);

  // The room for an answer's values.
  struct Room {
    std::shared_ptr<SharedMemory> memory;  // Null: there is none.
    uint64_t offset = 0;
    uint64_t bytes = 0;

    // Moves the values into the room and returns their bytes. 0, and the values stay, if they do not fit.
    uint64_t Put(std::vector<grpc::Slice>* values) const;
  };
  // Sets `room` to the one that `call` names, if any. INVALID_ARGUMENT as Take.
  absl::Status TakeRoom(const v1::Call& call, Room* room) const;

 private:
  absl::Status CheckRange(const v1::SharedRange& range) const;

  const std::string peer_;
  SharedUse use_ = SharedUse::kRefused;
  bool offered_ = false;
  uint64_t message_bytes_ = 0;            // Of the current message's calls in the memory.
  std::shared_ptr<SharedMemory> memory_;  // Null: nothing is shared.
};

}  // namespace lodestone::server
