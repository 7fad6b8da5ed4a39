// What pushes and pulls cost as functions of their size, fitted to measured rows, and what that says of larger
// clusters. README.md tells the model in words.
//
// Thread safety: pure functions and plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/harness/row.h"

namespace lodestone::bench {

// CPU seconds of one side for an operation: per message, per payload byte, per embedding key.
struct Cost {
  double per_message = 0;
  double per_byte = 0;
  double per_key = 0;

  double Of(double messages, double bytes, double keys) const {
    return per_message * messages + per_byte * bytes + per_key * keys;
  }
};

// A measured operation.
struct CostPoint {
  double messages = 0;
  double bytes = 0;
  double seconds = 0;
};

// Costs per message and per byte, none of them negative, whose squared relative errors are least. per_key is 0.
// REQUIRES: at least two points of different bytes per message; all positive.
Cost FitCost(const std::vector<CostPoint>& points);

struct CostModel {
  Cost push_client, push_server, pull_client, pull_server;
};

// Fits the rows dense/{push,pull}/SIZE/depth8/clients1, and the keys' costs to embedding/{pull,push}/1000Krows/dim16/
// depth4 where there are such rows. FAILED_PRECONDITION if there are not two sizes.
absl::StatusOr<CostModel> FitCostModel(const Report& report);

// Messages that a transfer of `bytes` to one server is cut into.
double MessagesOf(double bytes);

// A cluster and its training step, the same for every worker.
struct Scenario {
  std::string name;
  double workers = 100;
  double servers = 20;
  double link_bytes_per_second = 12.5e9;  // In each direction, of each machine.
  double cores = 32;                      // Of each machine that the server, or the client of a worker, may use.
  double dense_bytes = 0;                 // Pushed and pulled in each step.
  double keys = 0;                        // Of embedding rows that are pulled and pushed in each step.
  double dim = 16;
};

// How many steps per second each worker could make at most, were this alone the limit.
struct Prediction {
  std::vector<std::pair<std::string, double>> limits;  // What, steps/s.
  double server_memory_bytes = 0;                      // Of messages under way, at the default window.
};
Prediction Predict(const CostModel& model, const Scenario& scenario);

// The README's tables: the fitted costs, four measured points that were not fitted against their predictions, and the
// predictions for 100 workers and 20 servers on 100 Gb/s.
absl::StatusOr<std::string> ModelMarkdown(const Report& report);

}  // namespace lodestone::bench
