// A model's metrics over some samples of a data set, exactly: one pass, all predictions compared with one another.
//
// Thread safety: a function for one thread; it starts a pipeline of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/client/client.h"
#include "worker/data/dataset.h"
#include "worker/metrics/evaluation_metrics.h"
#include "worker/model/model.h"
#include "worker/training/compute.h"
#include "worker/training/parameters.h"

namespace lodestone::worker {

struct Evaluation {
  Client* client = nullptr;
  const Model* model = nullptr;
  Compute* compute = nullptr;                        // Of that model.
  const std::vector<TableHandle>* tables = nullptr;  // Beside model->tables().
  const Parameters* parameters = nullptr;            // Of the dense ones; used as they are.
  const Dataset* data = nullptr;
  uint64_t samples = 0;                            // How many of data's, evenly spread; at most data->size().
  uint32_t prefetch_batches = 2;                   // At least 1 is used.
  std::function<void(uint64_t samples)> progress;  // Called with the number done.
  const std::atomic<bool>* stop = nullptr;         // Set to end early with CANCELLED.
};

absl::StatusOr<Metrics::Result> Evaluate(const Evaluation& evaluation);

}  // namespace lodestone::worker
