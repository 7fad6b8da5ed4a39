// Settings of tables on all ps of a cluster (Admin.SetTable): asked once, or, while training pauses, again until
// nothing is left to be done when it goes on.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "tools/psctl/client/held_pause.h"

namespace lodestone::psctl {

// The answer of one ps.
struct SetPart {
  uint32_t server = 0;
  std::string address;
  absl::StatusOr<v1::SetTableResponse> done;
};

bool HasFailed(const std::vector<SetPart>& parts);
// The table as the ps has it that has changed it most often; without a name if none has it.
v1::TableSpec NewestOf(const std::vector<SetPart>& parts);

class TableSetter {
 public:
  // Of the cluster of the ps at `address`; waits so long for each ps.
  TableSetter(std::string address, int timeout_ms) : address_(std::move(address)), timeout_ms_(timeout_ms) {}

  // Asks every ps, by server. An error if the servers cannot be known; those of single servers are in their parts.
  absl::StatusOr<std::vector<SetPart>> Set(const v1::SetTableRequest& request) const;
  // What all ps say of a table; changes nothing.
  absl::StatusOr<std::vector<SetPart>> Ask(const std::string& table) const;
  // As Set, again until all ps had it before they were asked: of a ps that is away, that answers late, or that gets
  // its first shard meanwhile, nothing may be left to be done when training goes on. The pause is sure to last for each
  // attempt, which first asks who the ps are. A refusal (INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION) is
  // returned at once, in the parts; so are the errors that are left after the timeout. `tell_wait` is called once,
  // after a second, with what it takes so long for. CANCELLED: interrupted; DEADLINE_EXCEEDED: they changed it again
  // and again.
  absl::StatusOr<std::vector<SetPart>> SetWhileAtRest(v1::SetTableRequest request, HeldPause* pause,
                                                      const std::function<void(const std::string&)>& tell_wait) const;

 private:
  const std::string address_;
  const int timeout_ms_;
};

}  // namespace lodestone::psctl
