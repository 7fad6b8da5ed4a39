// The encoding of calls and answers on one stream Exchange. The only place that deals with shared memory, with lists of
// keys that the ps remembers and with a ps that does not take parts of several shards: a CallPayload becomes a Frame,
// and an answer gives its payload wherever it lies.
//
// Thread-safe. A call goes through Share, Encode, Learn and Decode, in this order.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/wire/frame.h"
#include "common/wire/key_list.h"
#include "common/wire/message.h"
#include "proto/parameter_server.pb.h"
#include "worker/rpc/call_payload.h"
#include "worker/rpc/shared_memory_calls.h"

namespace lodestone::worker {

// Whether a call failed because the ps had forgotten its list of keys: the ps has done nothing, and the call must be
// sent again with the keys.
bool IsListForgotten(const absl::Status& status);

class FrameCodec {
 public:
  // Offers the ps called `peer` memory of `shared_bytes`, 0: none. `shared_refused`: as SharedMemoryCalls.
  FrameCodec(std::string peer, size_t shared_bytes, std::shared_ptr<std::atomic<bool>> shared_refused)
      : shared_(std::move(peer), shared_bytes, std::move(shared_refused)) {}

  // The encoding of one call, by which its answer is decoded.
  struct Encoding {
    KeyListName list;       // Of its keys; count 0: none.
    bool list_sent = true;  // Otherwise only its name was.
    SharedMemoryCalls::Held shared;
  };

  // An upper bound of the bytes that `call` takes in a message without shared memory, and those that shared memory adds
  // to its header. Overwrites what Encode sets.
  static size_t BytesMax(const CallPayload& payload, v1::Call* call);
  static constexpr size_t kSharedHeaderBytesMax = 128;

  // Copies large values to shared memory, if there is some. Takes time.
  void Share(const CallPayload& payload, v1::Call* call, Encoding* encoding);
  // The frame of `call` with the id `id`. A list of keys that the ps remembers is not sent, and parts of several shards
  // only to a ps that takes them.
  Frame Encode(uint64_t id, const CallPayload& payload, v1::Call* call, Encoding* encoding);

  // Takes what an answer says of the ps, and of the call's list of keys.
  void Learn(const v1::Answer& answer, const Encoding& encoding);
  // The payload of an answer, from shared memory or from the message. INTERNAL, which the stream must end with, if the
  // answer contradicts itself.
  absl::StatusOr<Payload> Decode(const v1::Answer& answer, Payload payload, Encoding* encoding);
  // The status of an answer whose code is not 0. IsListForgotten, if so.
  static absl::Status StatusOf(const v1::Answer& answer, const Encoding& encoding);

 private:
  Frame EncodeAsItIs(uint64_t id, const CallPayload& payload, v1::Call* call, Encoding* encoding);
  // The payload's bytes that travel in the message; says in `call` where the keys are.
  std::vector<grpc::Slice> MessagePayload(const CallPayload& payload, v1::Call* call, Encoding* encoding);

  SharedMemoryCalls shared_;  // Synchronises itself.

  Mutex mu_;
  bool knows_lists_ ABSL_GUARDED_BY(mu_) = false;  // An answer has shown that the ps knows of lists.
  // Those that the ps should remember.
  KeyListMemory<std::monostate> lists_ ABSL_GUARDED_BY(mu_){kKeyListBytesPerStream};

  std::atomic<bool> takes_several_shards_{false};  // An answer has said that the ps takes parts of several.
};

}  // namespace lodestone::worker
