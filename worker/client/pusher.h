// The push path of a client: one message or more per server, each with its own sequence, which its retries keep, so
// that every shard applies it exactly once. A message whose shards have got other owners is split among them; its
// pieces keep the sequence. A step of a leased range has the range's incarnation and its place in the range instead, in
// all of its messages, of which each shard has one.
//
// Thread-safe. Callbacks run on a connection's thread or the timer's.
//
// The channels must have been cancelled, and their connections be destroyed, before this is.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "proto/parameter_server.pb.h"
#include "worker/client/delay_meter.h"
#include "worker/client/push_payload.h"
#include "worker/client/push_window.h"
#include "worker/client/server_set.h"
#include "worker/client/types.h"
#include "worker/rpc/server_channel.h"

namespace lodestone::worker {

class Pusher {
 public:
  // A wait for room in the window ends after `window_timeout_ms`.
  Pusher(const ServerSet& servers, size_t pushes_max, int64_t window_timeout_ms)
      : servers_(servers),
        window_timeout_ms_(window_timeout_ms),
        window_(pushes_max),
        delays_(servers.map()->shards()),
        revisions_(servers.channels.size()) {}
  ~Pusher();

  // As Client::Push. With `pull` (null: none) each message of it goes with one of the push, in one call, if all of them
  // can; a message that has to be sent again to another ps goes without, and `pull` is not complete then.
  absl::Status Push(const StepOrigin& step, std::span<const DenseGradient> dense, std::span<const RowGradients> rows,
                    const ReadVersions& read_versions, std::function<void(PushResult)> done,
                    const std::shared_ptr<PullValues>& pull = nullptr);
  // As Client::SetPushesInFlightMax.
  void SetPushesInFlightMax(size_t pushes) { window_.SetPushesMax(pushes); }
  // As Client::Flush.
  absl::Status Flush() { return window_.Flush(); }
  // As Client::SettingsChanges.
  uint64_t SettingsChanges() const { return settings_changes_.load(std::memory_order_relaxed); }
  // Later pushes, and those that wait for room in the window, end with `status`.
  void Fail(const absl::Status& status) { window_.Fail(status); }

 private:
  struct Operation;
  class Release;

  // The state of a message in flight, or of a piece of one that was split.
  struct InFlight {
    uint32_t server = 0;
    bool known = false;  // Whether the server knew this worker when the message was sent.
    Sequence sequence = 0;
    std::shared_ptr<ServerSessions> range;  // Whose step it is; null: of the worker alone.
    PullRider rider;
    std::shared_ptr<Operation> operation;
    std::shared_ptr<std::atomic<size_t>> pieces;  // Unanswered pieces of a message that was split; null: it was not.
  };

  void Send(ServerChannel::Request request, InFlight in_flight);
  // Sends each part to the owner of its shard by `map`.
  void SendAgain(const ShardMap& map, ServerChannel::Request request, const InFlight& in_flight);
  void OnAnswer(const absl::StatusOr<Connection::Answer>& answer, ServerChannel::Request* request, InFlight* in_flight);
  absl::Status TakeAnswer(const Connection::Answer& answer, const v1::Call& call, const InFlight& in_flight);
  void NoteRevision(uint32_t server, uint64_t revision);
  void OnTurnedBack(const absl::Status& status, ServerChannel::Request* request, InFlight* in_flight);
  void OnUnknown(ServerChannel::Request* request, InFlight* in_flight);
  void End(const InFlight& in_flight, const absl::Status& status);
  void EndMessage(Operation* operation, const absl::Status& status);

  ServerSessions* SessionsOf(const InFlight& in_flight) const;

  const ServerSet servers_;
  const int64_t window_timeout_ms_;
  PushWindow window_;                             // Synchronises itself.
  DelayMeter delays_;                             // Synchronises itself.
  std::vector<std::atomic<uint64_t>> revisions_;  // By server: PushResponse.settings_revision of its last answer.
  std::atomic<uint64_t> settings_changes_{0};

  Mutex mu_;
  CondVar released_;
  size_t borrowed_ ABSL_GUARDED_BY(mu_) = 0;  // Operations whose gradients gRPC may still read.
};

}  // namespace lodestone::worker
