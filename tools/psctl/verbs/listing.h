// `psctl tables`, `psctl workers`, `psctl waits`: one aspect of a cluster, merged from the answers of all its servers.
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
#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

// The tables of all servers that answered, by name, with the figures of all servers merged, followers' copies included.
std::vector<v1::TableStatus> TablesOf(const ClusterReport& report);

// Each worker's pushes, from its sessions on all servers that answered.
PushesByWorker PushesOf(const ClusterReport& report);

// A wait under way somewhere.
struct ClusterWait {
  std::string where;    // The process that reports it: "ps 1".
  v1::WaitStatus wait;  // A worker reports no time: 0.
};
// All waits of all servers that answered, and of the workers as the coordinator knows them; the longest first.
std::vector<ClusterWait> WaitsOf(const ClusterReport& report);

Rows TableRows(const std::vector<v1::TableStatus>& tables);
Rows WaitRows(const std::vector<ClusterWait>& waits);

// Each runs its verb, with the result on standard output; returns the exit code (exit_code.h): 1 if a ps that lives did
// not answer.
int RunTables(const ReportOptions& options);
int RunWorkers(const ReportOptions& options);
int RunWaits(const ReportOptions& options);

extern const Verb kTablesVerb;
extern const Verb kWorkersVerb;
extern const Verb kWaitsVerb;

}  // namespace lodestone::psctl
