// The counters of payload bytes that this worker sends and receives, by direction and encoding.
#pragma once

#include "common/telemetry/metrics.h"

namespace lodestone::worker {

inline constexpr char kPayloadBytes[] = "lodestone_worker_payload_bytes_total";
inline constexpr char kPayloadBytesHelp[] =
    "Payload bytes of pushes (without repetitions), of answers to pulls and of broadcasts.";

inline CounterMetric push_bytes_metric(kPayloadBytes, kPayloadBytesHelp, {{"direction", "push"}, {"codec", "f32"}});
inline CounterMetric pull_bytes_metric(kPayloadBytes, kPayloadBytesHelp, {{"direction", "pull"}, {"codec", "f32"}});
inline CounterMetric broadcast_bytes_metric(kPayloadBytes, kPayloadBytesHelp,
                                            {{"direction", "broadcast"}, {"codec", "f32"}});

}  // namespace lodestone::worker
