// The events of the cluster that have not been taken yet, in the order in which they happened.
//
// Not thread-safe.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/time_source.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

struct MemberPlace;

class EventQueue {
 public:
  // `time`: milliseconds since 1970; must outlive this.
  explicit EventQueue(const TimeSource* time) : time_(time) {}

  // Adds an event of now, about the process at `place`.
  void Note(absl::string_view kind, const MemberPlace& place, std::string text);
  // Adds an event that a process reports.
  void Add(v1::Event event) { events_.push_back(std::move(event)); }

  // The events since the last call.
  std::vector<v1::Event> Take() { return std::exchange(events_, {}); }

 private:
  const TimeSource* const time_;
  std::vector<v1::Event> events_;
};

}  // namespace lodestone::server
