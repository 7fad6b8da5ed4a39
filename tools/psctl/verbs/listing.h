// `psctl tables`, `psctl workers`, `psctl waits`: what all servers of a cluster say of one thing, put together.
//
// Thread safety: pure functions and plain values, but for the Run… functions, which write on standard output.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/admin.pb.h"
#include "tools/psctl/client/cluster_report.h"
#include "tools/psctl/text/table.h"
#include "tools/psctl/verbs/status_table.h"

namespace lodestone::psctl {

// The tables of all servers that answered, by name: what is on them is summed up, followers' copies included;
// version_max is the highest.
std::vector<v1::TableStatus> TablesOf(const ClusterReport& report);

// What the sessions of all servers that answered say of each worker's pushes.
PushesByWorker PushesOf(const ClusterReport& report);

// A wait under way somewhere.
struct ClusterWait {
  std::string where;    // Who tells: "ps 1".
  v1::WaitStatus wait;  // A worker tells no time: 0.
};
// All waits of all servers that answered, and of the workers as the coordinator knows them; the longest first.
std::vector<ClusterWait> WaitsOf(const ClusterReport& report);

Rows TableRows(const std::vector<v1::TableStatus>& tables);
Rows WaitRows(const std::vector<ClusterWait>& waits);

// Each runs its verb, with the result on standard output; returns the exit code (outcome.h): 1 if a ps that lives did
// not answer.
int RunTables(const ClusterOptions& options);
int RunWorkers(const ClusterOptions& options);
int RunWaits(const ClusterOptions& options);

}  // namespace lodestone::psctl
