// The tables of a model as the servers have them: all with one order of steps, which an operator may hold against what
// configurations say (psctl set). While they differ, because psctl was ended in the middle, nothing is trained: what
// a step waits for might never come.
//
// Thread safety: pure, but for what is asked of the client.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/time_source.h"
#include "proto/table.pb.h"
#include "worker/client/table_handle.h"

namespace lodestone::worker {

class Client;

// The wait while tables differ.
struct AgreementWait {
  int64_t timeout_ms = 60'000;
  const TimeSource* time = nullptr;
  // Asked now and then; true ends it.
  std::function<bool()> stops;
  // Gets what is waited for, when it begins, and "" at its end.
  std::function<void(const std::string& what)> on_wait;
};

// Ensures the tables of `specs` with the consistency that an operator holds, if one does, once all servers have one
// order of steps for all of them. Nullopt: `stops` said so. FAILED_PRECONDITION: they differed for all of the time.
// Other errors: as Client::EnsureTables.
absl::StatusOr<std::optional<std::vector<TableHandle>>> EnsureAgreedTables(Client* client,
                                                                           std::vector<v1::TableSpec> specs,
                                                                           const AgreementWait& wait);

}  // namespace lodestone::worker
