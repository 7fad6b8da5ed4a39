// The requests that a ps turned back because it does not own a shard of theirs (ABORTED), until they are sent again by
// the newest shard map: at once if that is newer than the one that routed them; otherwise after asking for it, when a
// newer one has come or a pause is over (the owner may be the one with an old map). The pause is short while a
// map has just given the shard another owner: in a move that one knows it within milliseconds.
//
// Thread-safe. Callbacks run on the thread that turned the request back, the timer's, or that of Wake, and must be
// quick.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/timer.h"
#include "common/wire/shard_map.h"
#include "worker/rpc/server_channel.h"

namespace lodestone::worker {

class Rerouter {
 public:
  struct Options {
    std::function<std::shared_ptr<const ShardMap>()> map;  // The newest.
    std::function<void()> ask_route;                       // Asks for it soon.
    Timer* timer = nullptr;                                // Must outlive this.
    // A request is not sent again later than this after its first attempt.
    int64_t retry_timeout_ms = 0;
    uint64_t seed = 0;
  };
  explicit Rerouter(Options options) : options_(std::move(options)) {}
  ~Rerouter() { Cancel(); }

  using Resume = std::function<void(absl::StatusOr<std::shared_ptr<const ShardMap>>)>;
  // `request` was answered with `error`. Calls `resume` once: with the map to send it by; with CANCELLED after
  // Cancel(); or, once its time is up, with the code of `error` and a message that names its shards, their owners by
  // which map, and the time that has passed.
  void TurnBack(const absl::Status& error, ServerChannel::Request* request, Resume resume);

  // Resumes what waits: there is a newer map.
  void Wake();

  // What has been turned back for longer than `ms`, the oldest.
  std::optional<v1::WaitStatus> WaitLongerThan(int64_t ms) const;

  // Ends all waiting and later requests with CANCELLED, and waits until no callback of this object runs.
  void Cancel();

 private:
  struct Waiting {
    Timer::Id pause = 0;
    Resume resume;
    int64_t started_ms = 0;  // Of the request's first attempt.
    v1::WaitStatus wait;     // Without its time.
  };

  // The longest pause of a request that `map` does not lead elsewhere.
  int64_t PauseMaxMs(const ServerChannel::Request& request, const std::shared_ptr<const ShardMap>& map);
  void NoteMap(const std::shared_ptr<const ShardMap>& map) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnPauseOver(uint64_t id);
  void EndOne();

  const Options options_;
  const SteadyTime time_;

  mutable Mutex mu_;
  CondVar idle_;
  std::map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  uint64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<const ShardMap> newest_ ABSL_GUARDED_BY(mu_);  // That was seen here.
  std::map<ShardId, int64_t> changed_ms_ ABSL_GUARDED_BY(mu_);   // When it had another owner than in the map before.
  int running_ ABSL_GUARDED_BY(mu_) = 0;  // Pauses that are not over yet, and calls of Wake at work.
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::worker
