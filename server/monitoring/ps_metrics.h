// What a ps knows of itself, and of the cluster if it coordinates that, as metrics. To add one that the status has is a
// line in metrics.cc; one that it has not is a variable where it is counted (common/telemetry/metrics.h).
//
// Thread safety: a pure function.
#pragma once

#include "common/telemetry/metrics.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

// Tables that have series of their own, the first by name; the others together are the table "(others)".
inline constexpr int kTablesWithSeries = 200;

// Adds them. `ready`: as /readyz says; `now_seconds`: since 1970.
void AddPsMetrics(const v1::StatusResponse& status, bool ready, double now_seconds, MetricFamilies* to);

}  // namespace lodestone::server
