// Text of a ps's status.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "proto/admin.pb.h"
#include "tools/psctl/text/table.h"

namespace lodestone::psctl {

// Each worker's pushes on all servers together, by its incarnation.
struct WorkerPushes {
  uint64_t applied = 0;
  uint64_t refused = 0;
};
using PushesByWorker = std::map<uint64_t, WorkerPushes>;

// What the coordinator knows of its servers and workers; of these also what `pushes` says, if it is given.
Rows ServerRows(const v1::ClusterStatus& cluster);
Rows WorkerRows(const v1::ClusterStatus& cluster, const PushesByWorker* pushes = nullptr);
// What one ps knows of its tables.
Rows TableRows(const v1::StatusResponse& status);

// All that `status` holds, section by section; empty sections are left out.
std::string StatusText(const v1::StatusResponse& status, const Painter& paint = Painter());

}  // namespace lodestone::psctl
