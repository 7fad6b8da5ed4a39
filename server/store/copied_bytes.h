// The counter of payload bytes that this ps copies in user space between its memory and a socket, for benchmarks: near
// 0 per byte of a dense table, and 1 per byte of a row that is pulled, since rows lie apart.
#pragma once

#include "common/telemetry/metrics.h"

namespace lodestone::server {

// Once per message, not per copy. Elements that lie in several of a message's slices do not count.
inline CounterMetric copied_bytes_metric(
    "lodestone_ps_copied_bytes_total",
    "Payload bytes copied between tables and messages: rows that are pulled, lists "
    "of keys that are remembered.");

}  // namespace lodestone::server
