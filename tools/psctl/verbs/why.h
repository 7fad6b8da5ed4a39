// `psctl why`: the waits of a cluster, followed across its processes to their roots, and where its time goes.
//
// Thread safety: functions that may be called from any thread.
#pragma once

#include <vector>

#include "proto/admin.pb.h"
#include "tools/psctl/client/cluster_report.h"
#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

// The chains of waits of a cluster, by what its processes say now: a ps that did not answer is where a chain ends.
std::vector<v1::WaitChain> WhyOf(const ClusterReport& report);

// Asks the cluster and prints. 0: all servers that live have answered, whether anything waits or not; else 1.
int RunWhy(const ReportOptions& options);

extern const Verb kWhyVerb;

}  // namespace lodestone::psctl
