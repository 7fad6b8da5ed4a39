// The job of a worker between joining the cluster and leaving it: makes the model's tables, trains on its partition
// and, if it is worker 0, waits for the others and evaluates the model.
//
// Thread safety: for one thread; others may set `stop`.
#pragma once

#include <atomic>

#include "absl/status/statusor.h"
#include "common/base/time_source.h"
#include "kernels/backend.h"
#include "kernels/cpu_backend.h"
#include "proto/config.pb.h"
#include "worker/client/client.h"
#include "worker/data/dataset.h"
#include "worker/report/results.h"
#include "worker/report/summary.h"
#include "worker/training/training_context.h"

namespace lodestone::worker {

// CANCELLED if `stop` said to quit before the end; all pushes are acknowledged then. Told to finish, it takes no
// further step and goes on to the end. Worker 0 evaluates when no worker takes steps any more, and again if others have
// pushed meanwhile; the summary says whether all samples were trained. `results` (may be null) get the steps, but not
// the end. `backend` computes; it must outlive the client, whose last pushes send from its memory.
absl::StatusOr<Summary> RunJob(const v1::Config& config, Client* client, const LoadedData& data, const TimeSource* time,
                               const std::atomic<StopRequest>* stop, Results* results = nullptr,
                               kernels::Backend* backend = kernels::Cpu());

}  // namespace lodestone::worker
