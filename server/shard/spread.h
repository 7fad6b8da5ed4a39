// How the shares of one call, each some shards' work, come to their executors.
//
// An executor that is idle runs its share on the thread that submits it, one share after the other: a busy ps wants no
// hand-off between threads. In an idle one other cores would have nothing to do meanwhile; there, large shares but the
// last go to their executors' threads, and run at the same time.
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/shard/executor.h"

namespace lodestone {

// From here on a share is large: it takes some 40 us, and to wake a thread a tenth of that.
inline constexpr uint64_t kShareBytesLarge = 256 << 10;
// What finding a row counts for beside its values.
inline constexpr uint64_t kRowFindBytes = 256;

struct Share {
  Executor* executor = nullptr;
  uint64_t bytes = 0;  // Of the values that it reads or updates, and kRowFindBytes for each row.
  Executor::Message run;
};

// Submits all shares. `idle`: nothing else is being done by this ps.
void Spread(std::vector<Share> shares, bool idle);

// Whether this thread, which serves calls, has had nothing to do for a good part of the time since it last asked.
bool HasIdled();

}  // namespace lodestone
