// The gradients and destinations of the C interface as the client takes them: keys that come more than once are added
// up, or read once, and each argument is checked.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "worker/capi/call.h"
#include "worker/capi/lodestone.h"
#include "worker/client/types.h"

namespace lodestone::worker {

struct Gradients {
  std::vector<DenseGradient> dense;
  std::vector<RowGradients> rows;

  // What `rows` refer to where gradients were added up.
  std::deque<std::vector<Key>> keys;
  std::deque<std::vector<float>> sums;
};

struct Destinations {
  std::vector<DensePull> dense;
  std::vector<RowPull> rows;
};

// INVALID_ARGUMENT, naming the table, if one has no keys or values where it needs them, comes twice, or brings the keys
// to more than limits::kRowsPerBatchMax.
absl::Status TakeGradients(const lodestone_gradients* gradients, size_t count, Gradients* out);
// The same; `call` gets what must stay until the call is done.
absl::Status TakeDestinations(const lodestone_destination* destinations, size_t count, Call* call, Destinations* out);

}  // namespace lodestone::worker
