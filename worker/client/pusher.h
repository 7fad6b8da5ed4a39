// Sends gradients: one message or more per server, each with a sequence of its own that its retries keep, so that every
// shard applies it exactly once. A message whose shards have got other owners is split among them: each piece keeps the
// sequence, and each shard is in one of them.
//
// Thread-safe. Callbacks run on a connection's thread or the timer's.
//
// The callers must have been cancelled, and their connections be gone, before this is destroyed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/timer.h"
#include "common/base/types.h"
#include "common/wire/message.h"
#include "common/wire/shard_map.h"
#include "proto/parameter_server.pb.h"
#include "worker/client/client.h"
#include "worker/client/push_window.h"
#include "worker/client/request_router.h"
#include "worker/client/rerouter.h"
#include "worker/client/server_sessions.h"
#include "worker/client/staleness_meter.h"
#include "worker/rpc/call_payload.h"
#include "worker/rpc/server_channel.h"

namespace lodestone::worker {

// What is on the other side: a caller per server, by index, and this worker's name there.
struct Servers {
  std::function<std::shared_ptr<const ShardMap>()> map;  // The newest.
  std::span<const std::unique_ptr<Caller>> callers;
  Incarnation incarnation = 0;
  MessageLimits limits;
  Timer* timer = nullptr;
  Reroutes* reroutes = nullptr;
  Sessions* sessions = nullptr;
  // Called when a server says that it does not know this worker any more.
  std::function<void(const absl::Status&)> on_lost;
};

// A pull that goes with one of a push's messages, in one call, which is done after the push.
struct PullRider {
  v1::PullRequest request;
  std::vector<CallNumbers::Part> parts;                                       // Of its keys.
  uint64_t answer_bytes = 0;                                                  // Of its answer's values.
  std::function<uint8_t*(uint8_t*)> copy_keys;                                // Returns where the next keys go.
  std::function<absl::Status(const v1::PullResponse&, const Payload&)> take;  // Of its answer.
};

// What is pushed.
struct PushWork {
  std::span<const DenseGradient> dense;
  std::span<const RowGradients> rows;
  const ShardVersions& read_versions;
};
// The messages of a push by `map`; errors as Route.
absl::StatusOr<Routing> RouteBy(const ShardMap& map, const PushWork& work, const MessageLimits& limits);

class Pusher {
 public:
  // A wait for room in the window ends after `window_timeout_ms`.
  Pusher(const Servers& servers, size_t pushes_max, int64_t window_timeout_ms)
      : servers_(servers),
        window_timeout_ms_(window_timeout_ms),
        window_(pushes_max),
        staleness_(servers.map()->shards()) {}
  ~Pusher();

  // As Client::Push.
  absl::Status Push(Clock clock, const PushWork& work, std::function<void(Client::PushResult)> done);
  // The same of messages that have been made by `map`. `riders`, by message (null, or less of them: none): what a
  // message cannot take along, since it had to be sent again in another way, is not read.
  using Riders = std::vector<std::shared_ptr<const PullRider>>;
  absl::Status Push(Clock clock, const PushWork& work, const ShardMap& map, const Routing& routing,
                    const Riders& riders, std::function<void(Client::PushResult)> done);
  // As Client::Flush.
  absl::Status Flush() { return window_.Flush(); }
  // Pushes to come, and those that wait for room, end with `status`.
  void Fail(const absl::Status& status) { window_.Fail(status); }

 private:
  struct Operation;
  class Release;

  // What is known of a message, or of a piece of one that was split, while it is under way.
  struct Piece {
    uint32_t server = 0;
    bool known = false;  // Whether the server had been told of this worker.
    Sequence sequence = 0;
    std::shared_ptr<const PullRider> rider;  // Null: none (any more).
    std::shared_ptr<Operation> operation;
    std::shared_ptr<std::atomic<size_t>> pieces;  // Unanswered, of one that was split; null: it was not.
  };

  void Send(Caller::Message message, Piece piece);
  // Sends each part to who owns its shard by `map`.
  void SendAgain(const ShardMap& map, Caller::Message message, const Piece& piece);
  void OnAnswer(const absl::StatusOr<Connection::Answer>& answer, Caller::Message* message, Piece* piece);
  absl::Status TakeAnswer(const Connection::Answer& answer, const v1::Call& call, const Piece& piece);
  void OnTurnedBack(const absl::Status& status, Caller::Message* message, Piece* piece);
  void OnUnknown(Caller::Message* message, Piece* piece);
  void EndPiece(const Piece& piece, const absl::Status& status);
  void EndMessage(Operation* operation, const absl::Status& status);

  const Servers servers_;
  const int64_t window_timeout_ms_;
  PushWindow window_;         // Synchronises itself.
  StalenessMeter staleness_;  // Synchronises itself.

  Mutex mu_;
  CondVar released_;
  size_t borrowed_ ABSL_GUARDED_BY(mu_) = 0;  // Operations whose gradients gRPC may still read.
};

// The numbers of `message`, and of the pull that goes with it (null: none does). Borrowed gradients are referenced;
// `release` is destroyed once nothing refers to them any more. The rest is copied.
CallNumbers PushNumbers(const RoutedMessage& message, std::span<const DenseGradient> dense,
                        std::span<const RowGradients> rows, std::shared_ptr<void> release,
                        const PullRider* rider = nullptr);

// Makes of a push and a pull in one call the push alone.
void DropPull(Caller::Message* message);

// A part of a message, for `server`.
struct SplitPush {
  uint32_t server = 0;
  Caller::Message message;
};
// Splits a push by the owners of `map`. The values are referenced, not copied.
std::vector<SplitPush> Split(const ShardMap& map, Caller::Message message);

}  // namespace lodestone::worker
