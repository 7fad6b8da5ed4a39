// The sessions of the workers that this ps knows, and the last contact of each.
//
// A session is opened by EnsureTables and kept alive by any call. A push without a session is refused, so a worker that
// was forgotten (with its marks of applied pushes) can never apply a push twice.
//
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

class Sessions {
 public:
  using WallClock = std::function<std::chrono::system_clock::time_point()>;
  explicit Sessions(WallClock wall_clock = std::chrono::system_clock::now) : wall_clock_(std::move(wall_clock)) {}

  // Opens (or keeps) the session of `worker`. FAILED_PRECONDITION if it was forgotten before; RESOURCE_EXHAUSTED if
  // there are too many. INVALID_ARGUMENT if the incarnation is of a time so far ahead of the wall clock that, once the
  // session was forgotten, it would keep later workers out.
  absl::Status Open(Incarnation worker, int64_t now_ms);
  // Notes a push that is about to be checked. FAILED_PRECONDITION if there is no such session.
  absl::Status Push(Incarnation worker, Sequence sequence, Clock clock, int64_t now_ms);
  // Notes the outcome of it.
  void PushApplied(Incarnation worker);
  void PushRefused(Incarnation worker);
  // Notes any other call. Does nothing for callers without a session.
  void Contact(Incarnation worker, int64_t now_ms);

  // Restores a session that an earlier life of this ps, or another ps, knew, with contact now. False if it is known.
  bool Restore(Incarnation worker, int64_t now_ms);
  // Ends the session of `worker`: it, and each below it without a session, may have been forgotten.
  void RestoreForgotten(Incarnation worker);
  // The same for workers without a session; ends none.
  void RaiseForgotten(Incarnation worker);
  struct Known {
    std::vector<Incarnation> open;
    Incarnation forgotten_max = 0;
  };
  Known known() const;

  // Forgets the sessions that were idle for too long, and returns them.
  std::vector<Incarnation> ForgetIdle(int64_t now_ms);

  void FillStatus(int64_t now_ms, v1::StatusResponse* status) const;

 private:
  struct Session {
    int64_t last_contact_ms = 0;
    Clock clock = 0;
    Sequence sequence = 0;
    uint64_t pushes = 0;
    uint64_t refused = 0;
  };

  const WallClock wall_clock_;

  mutable Mutex mu_;
  absl::flat_hash_map<Incarnation, Session> sessions_ ABSL_GUARDED_BY(mu_);
  // The newest forgotten. Incarnations grow over time, so a worker that is not above it, and has no session, may have
  // been forgotten too.
  Incarnation forgotten_max_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lodestone::server
