// The sessions of the workers that this ps knows, and the last contact of each.
//
// A session is opened by EnsureTables and kept alive by any call. It ends when the coordinator tells that its worker
// has left or died, or after limits::kSessionIdleMaxMs without a call. A push without a session is refused, so a worker
// that was forgotten (with its marks of applied pushes) can never apply a push twice.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
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

  // Opens (or keeps) the session of `worker`. FAILED_PRECONDITION if it has ended or was forgotten before. If there are
  // too many, it takes the place of the one of which nothing was heard for longest among those that have not pushed:
  // any caller can open those, and they may be opened again. RESOURCE_EXHAUSTED if all have. INVALID_ARGUMENT if the
  // incarnation is of a time so far ahead of the wall clock, and of what NoteGiven was told, that, once the session was
  // forgotten, it would keep later workers out.
  absl::Status Open(Incarnation worker, int64_t now_ms);
  // Notes an incarnation that the coordinator gave, to this ps or another process: a coordinator whose clock is ahead,
  // or once was, gives later ones to the workers that come.
  void NoteGiven(Incarnation incarnation, int64_t now_ms);
  // Notes a push that is about to be checked. FAILED_PRECONDITION if there is no such session.
  absl::Status Push(Incarnation worker, Sequence sequence, Clock clock, int64_t now_ms);
  // Notes the outcome of a message of the push with `sequence`, which is about to be counted, or not. Whether the
  // message is late: a broadcast has been due (NoteDue) since the push, or a later one of the worker, was counted,
  // which may have gone without what this message has changed.
  bool PushApplied(Incarnation worker, Sequence sequence, bool counted);
  void PushRefused(Incarnation worker);
  // Notes that a broadcast is due after what was counted so far, before it begins.
  void NoteDue();
  // Notes any other call. Does nothing for callers without a session.
  void Contact(Incarnation worker, int64_t now_ms);

  // Restores a session that an earlier life of this ps knew, with contact now. Not if the worker has ended.
  void Restore(Incarnation worker, int64_t now_ms);
  // Takes over a session that another ps knows. False if it is known here, or may have been forgotten: with it went the
  // marks of the worker's pushes, which may still come again.
  bool Adopt(Incarnation worker, int64_t now_ms);
  // Forgets the session of `worker`: it, and each below it without a session, may have been forgotten.
  void RestoreForgotten(Incarnation worker);
  // The same for workers without a session; ends none.
  void RaiseForgotten(Incarnation worker);

  // Ends the session of a worker that has left or died: it never comes back. Returns whether it had one.
  bool End(Incarnation worker);
  void RestoreEnded(std::span<const Incarnation> workers);
  // A number that grows when sessions end or are forgotten; while it stays the same, those that were there still are.
  uint64_t ends() const { return ends_.load(std::memory_order_acquire); }
  bool IsOpen(Incarnation worker) const;
  // Whether a worker has no session and gets none: it has ended, or may have been forgotten.
  bool IsOver(Incarnation worker) const;

  struct Known {
    std::vector<Incarnation> open;
    std::vector<Incarnation> ended;  // Above forgotten_max.
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
    Sequence counted = 0;  // The greatest that was counted;
    uint64_t dues = 0;     // dues_, when it was looked at last.
    Sequence due = 0;      // The greatest that was counted before the last broadcast that was due.
    uint64_t pushes = 0;
    bool has_pushed = false;  // Or may have, before it was restored or adopted: shards may have marks of it.
    uint64_t refused = 0;
  };

  static constexpr size_t kEndedMax = 16384;

  // The greatest incarnation that a coordinator may have given by now.
  Incarnation GivenMax(int64_t now_ms) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False: all have pushed.
  bool DropOneWithoutPushes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Forget(Incarnation worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RaiseTo(Incarnation forgotten_max) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteEnded(Incarnation worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const WallClock wall_clock_;

  std::atomic<uint64_t> ends_{0};
  mutable Mutex mu_;
  absl::flat_hash_map<Incarnation, Session> sessions_ ABSL_GUARDED_BY(mu_);
  uint64_t dues_ ABSL_GUARDED_BY(mu_) = 0;  // Broadcasts that were due.
  // The greatest that the coordinator gave ahead of the wall clock, and when that was noted; 0: none was.
  Incarnation given_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t given_ms_ ABSL_GUARDED_BY(mu_) = 0;
  // The newest forgotten. Incarnations grow over time, so a worker that is not above it, and has no session, may have
  // been forgotten too.
  Incarnation forgotten_max_ ABSL_GUARDED_BY(mu_) = 0;
  // The workers above forgotten_max_ that have left or died, the newest kEndedMax. One that starts slowly is not taken
  // for forgotten because younger ones have come and gone meanwhile.
  std::set<Incarnation> ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
