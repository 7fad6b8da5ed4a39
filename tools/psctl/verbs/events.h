// `psctl events`: what has happened in a cluster.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "tools/psctl/text/style.h"
#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

// "2026-11-21T04:00:00.123Z  died          ps 1      last heard of 5.0 s ago".
std::string EventLine(const v1::Event& event, const Painter& paint = Painter());

// Reads a cluster's events as they come: from the ps that serves its coordinator, whichever that is at the time, else
// from the ps at the address.
//
// Not thread-safe.
class EventReader {
 public:
  explicit EventReader(std::string address) : address_(std::move(address)) {}

  // Those that have come since the last call; at first all that are kept. An error if the ps at the address does not
  // answer.
  absl::StatusOr<std::vector<v1::Event>> Read(int timeout_ms);
  // Why what Read returned last is not the whole cluster's; empty: it is.
  const std::string& remark() const { return remark_; }
  // Whether what Read returned last begins a new log: another coordinator's, or another life's.
  bool restarted() const { return restarted_; }

 private:
  absl::StatusOr<v1::EventsResponse> Fetch(int timeout_ms);

  const std::string address_;
  std::string source_;  // The address of the ps that answers; empty: not known yet.
  std::string remark_;
  uint64_t incarnation_ = 0;  // Of the log; 0: nothing was read yet.
  uint64_t newest_id_ = 0;
  bool restarted_ = false;
};

struct EventsOptions {
  std::string address = "127.0.0.1:7000";
  bool json = false;
  int timeout_ms = 5000;  // For an answer; following, how long there may be none.
  bool follow = false;    // Go on for ever.
  uint64_t last = 0;      // Only the newest; 0: all.
};

// Runs it, with the events on standard output: as lines, as one JSON array, or (following) as one JSON object a line.
// Returns the exit code (exit_code.h).
int RunEvents(const EventsOptions& options);

extern const Verb kEventsVerb;

}  // namespace lodestone::psctl
