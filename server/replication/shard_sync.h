// The state of one follower of an owned shard: a state machine without I/O, clocks or locks.
//
//   Alone    It does not count: its owner acknowledges without it.
//   Joining  A follower has the shard's state and confirms updates; acknowledgements wait for it. The coordinator may
//            know already.
//   InSync   The coordinator knows that the follower counts, and may make it the owner at any moment.
//   Leaving  The follower is to count no more; acknowledgements wait until the coordinator knows that.
//
//   Alone -> Joining (Confirm) -> InSync (a report is accepted) -> Leaving (Leave) -> Alone (a report is accepted, or a
//   newer map says so). In InSync the owner may give the shard up (GiveUp). Joining -> Leaving (Leave; Detach if there
//   was no report). Alone -> Joining also at once, if the follower left because it was late, and has confirmed all
//   meanwhile: it would not say so again.
//
// Not thread-safe: belongs to a ShardFollower.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/types.h"

namespace lodestone::server {

class ShardSync {
 public:
  enum class State { kAlone, kJoining, kInSync, kLeaving };

  State state() const { return state_; }
  // A follower counts, or may: acknowledgements wait for it.
  bool counts() const { return state_ != State::kAlone; }
  bool HoldsUp(Version version) const { return counts() && confirmed_ < version; }
  // Whether updates are kept until they are confirmed.
  bool KeepsUpdates() const { return counts() || attached_; }

  // The follower, also one that is gone; 0: there has been none.
  Incarnation follower() const { return follower_; }
  // A stream sends it the updates; at first they wait until the state is sent.
  bool attached() const { return attached_; }
  bool sending_state() const { return sending_state_; }
  // The newest update; and the newest that the follower has confirmed (0: none).
  Version appended() const { return appended_; }
  Version confirmed() const { return confirmed_; }

  void SetAppended(Version version) { appended_ = version; }

  // A follower that is at `position` opens a stream; `oldest_kept` is the oldest update that is kept.
  enum class Attached {
    kResumes,      // It goes on with the updates after `position`.
    kNeedsState,   // It is to be sent the state, then the updates.
    kCountsStill,  // Nothing happens: the follower before counts, which must have left first.
  };
  // Whether Attach would find kResumes.
  bool Resumes(Incarnation follower, Version position, std::optional<Version> oldest_kept) const;
  Attached Attach(Incarnation follower, Version position, std::optional<Version> oldest_kept);
  void StateSent() { sending_state_ = false; }
  void Detach(int64_t now_ms);

  // The follower has applied all up to `version`.
  void Confirm(Version version);
  // The follower is to count no more; `late`: until it has all again. REQUIRES: counts().
  void Leave(bool late = false) {
    state_ = State::kLeaving;
    late_ = late;
  }
  // Why a follower that counts is to leave, as time passes; null: it stays. `waiting_since_ms`: of the oldest update
  // that waits for it.
  const char* WhyLate(int64_t now_ms, std::optional<int64_t> waiting_since_ms, int64_t patience_ms) const;

  // The owner answers for the shard no more, as the map with this number of a handover asks; 0: it does again. What was
  // appended is all that there will be. The coordinator is told as soon as the follower has it, and counts.
  void GiveUp(uint64_t handover, int64_t now_ms) {
    if (handover_ != handover) given_up_ms_ = now_ms;
    handover_ = handover;
    given_up_ = handover > 0;
  }
  // Whether the follower that is to own it has all that there will be of it.
  bool NextOwnerHasAll() const { return given_up_ && confirmed_ >= appended_; }
  bool ReadyToGiveUp() const { return state_ == State::kInSync && handover_ > 0 && confirmed_ >= appended_; }

  // What the coordinator is to learn.
  struct Report {
    bool in_sync = false;
    Incarnation follower = 0;
    uint64_t gives_up = 0;  // The number of the handover.
  };
  // Whether it has confirmed all that was acknowledged before, and the coordinator does not know yet.
  bool ReadyToJoin() const { return state_ == State::kJoining && !told_ && confirmed_ >= mark_; }
  // nullopt: nothing. One report is under way at a time, until one of the next two is called.
  std::optional<Report> TakeReport();
  // The coordinator may have taken the report all the same.
  void OnReportFailed();
  enum class Outcome {
    kNothing,
    kReleased,  // Alone again.
    kRejected,  // The coordinator knows another follower, or another owner.
  };
  Outcome OnReport(const Report& report, bool accepted, uint64_t epoch);
  // A map of `epoch` says that the follower does not count, or does not even name it. True if that is news, and it does
  // not count any more.
  bool OnMapWithoutFollower(uint64_t epoch, bool named = true);

 private:
  void Release();

  State state_ = State::kAlone;
  bool attached_ = false;
  bool sending_state_ = false;
  Incarnation follower_ = 0;
  Version appended_ = 0;
  Version confirmed_ = 0;
  Version mark_ = 0;            // kJoining: what it must confirm before it counts.
  bool told_ = false;           // The coordinator has, or is just getting, the report that it counts.
  bool reporting_ = false;      // A report is under way.
  bool late_ = false;           // kLeaving: because it was late.
  uint64_t in_sync_epoch_ = 0;  // The map's, when the coordinator took that it counts.
  int64_t lost_since_ms_ = 0;   // Since when it is not attached.
  uint64_t handover_ = 0;       // 0: none, or the coordinator has taken that it is given up.
  int64_t given_up_ms_ = 0;     // When it was.
  bool given_up_ = false;       // Also once the coordinator has taken that.
};

}  // namespace lodestone::server
