// `psctl move`, `psctl drain`, `psctl add` and `psctl rebalance`: shards get other owners while pushes go on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

struct MovesOptions {
  std::string address = "127.0.0.1:7000";
  std::string shards;              // Of move: "3", "0-15", "1,5,7-9"; with cancel: or empty, for all.
  std::optional<uint32_t> server;  // Of move, drain and add.
  bool cancel = false;             // Of move.
  bool undo = false;               // Of drain.
  bool no_wait = false;            // Return when it is planned; of add: and do not wait for the ps.
  bool json = false;
  int poll_ms = 500;
  int timeout_ms = 10'000;  // Of one call.
};

// The numbers of a list such as "1,5,7-9", ascending. INVALID_ARGUMENT if it is none, or names more than `max`.
absl::StatusOr<std::vector<uint32_t>> ParseNumbers(absl::string_view text, size_t max);

// Plan, and unless `no_wait`, wait until it is done, with a line whenever there is progress; what is planned is done
// also if that wait is broken off. It fails where another operator gives up or plans otherwise what is awaited. Return
// the exit code (exit_code.h).
int RunMove(const MovesOptions& options);
int RunDrain(const MovesOptions& options);
int RunRebalance(const MovesOptions& options);
// The same, once the ps is there, for which it waits first.
int RunAdd(const MovesOptions& options);

extern const Verb kMoveVerb;
extern const Verb kDrainVerb;
extern const Verb kRebalanceVerb;
extern const Verb kAddVerb;

}  // namespace lodestone::psctl
