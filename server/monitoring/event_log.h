// What has happened, for people to read: the newest events of a ps, or of a whole cluster.
//
// Thread-safe. Memory is bounded: limits::kEventsMax events of bounded length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"

namespace lodestone::server {

// Events in the order in which they came, numbered from 1 on.
class EventLog {
 public:
  // `time`: milliseconds since 1970; must outlive this.
  explicit EventLog(const TimeSource* time);

  // Notes what happens now; see v1::Event. No two events that one log notes have the same time, so that the time tells
  // whom they are sent to which of them it has already.
  void Add(absl::string_view kind, absl::string_view who, absl::string_view text);
  // Takes an event of another process, with its time.
  void Take(const v1::Event& event);

  // The first `count` events after the one with the id `after_id`, oldest first.
  std::vector<v1::Event> After(uint64_t after_id, size_t count) const;
  // What Admin.Events answers.
  v1::EventsResponse Tell(uint64_t after_id) const;

 private:
  void Append(uint64_t time_ms, absl::string_view kind, absl::string_view who, absl::string_view text)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const TimeSource* const time_;
  const uint64_t incarnation_;

  mutable Mutex mu_;
  std::deque<v1::Event> events_ ABSL_GUARDED_BY(mu_);  // The newest; ids without gaps.
  uint64_t newest_id_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t added_ms_ ABSL_GUARDED_BY(mu_) = 0;  // The time of the newest that was noted here.
};

// Turns refused pushes into events: a worker's first at once, and what follows it together, at most once in 10 s. The
// workers beyond the first few that have something refused within that time count as one.
//
// Thread-safe. `time` and `events` must outlive this.
class RefusedPushes {
 public:
  // `server`: who refuses them, "ps 1".
  RefusedPushes(std::string server, const TimeSource* time, EventLog* events)
      : server_(std::move(server)), time_(time), events_(events) {}

  // One of this worker's was refused. Not told: what passes by itself (UNAVAILABLE), which is no fault of the push.
  void Note(Incarnation worker, const absl::Status& why);
  // Tells what has been counted for long enough. Call about each second.
  void Tick();

 private:
  struct Count {
    int64_t told_ms = 0;
    uint64_t untold = 0;
    std::string why;  // Of the last one.
  };
  void Tell(Incarnation worker, int64_t now_ms, Count* count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string server_;
  const TimeSource* const time_;
  EventLog* const events_;

  Mutex mu_;
  absl::flat_hash_map<Incarnation, Count> counts_ ABSL_GUARDED_BY(mu_);  // 0: the workers that are too many.
};

// How a worker is called where its index is not known: "incarnation 7"; and the other way round, 0 if `who` is not of
// that form.
std::string NameOfIncarnation(Incarnation worker);
Incarnation IncarnationNamed(absl::string_view who);

}  // namespace lodestone::server
