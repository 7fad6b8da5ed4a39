// The counter of payload bytes that this process copies in user space between its memory and a socket, for benchmarks:
// at a ps near 0 per byte of a dense table, and 1 per byte of a row that is pulled, since rows lie apart; at a client
// near 0 per byte pushed and 1 per byte pulled.
#pragma once

#include "common/telemetry/metrics.h"

namespace lodestone {

// Added to once per message, not per copy. Elements that lie in several of a message's slices do not count.
inline CounterMetric copied_bytes_metric(
    "lodestone_copied_bytes_total",
    "Payload bytes copied between memory and messages: rows that are pulled, lists of keys, gradients that their "
    "caller does not lend.");

}  // namespace lodestone
