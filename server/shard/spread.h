// The distribution of one call's shares, each the work of some shards, to their executors.
//
// An idle executor runs its share on the thread that submits it, one share after the other: a busy ps wants no hand-off
// between threads. In an idle ps other cores would have nothing to do meanwhile; there, the shares are cut into groups
// that are worth a hand-off, and each group but the last goes to the thread of its first executor, so that they run at
// the same time, however many executors there are. (That executor is busy until its group is done.)
//
// Thread-safe.
#pragma once

#include <cstddef>
#include <vector>

#include "server/shard/executor.h"

namespace lodestone::server {

// From here on a group of shares is worth a thread of its own: it takes some 40 us, and to wake a thread a tenth of
// that. Dense values do not count: to update them takes the memory's bandwidth rather than a core's time.
inline constexpr size_t kGroupRowsMin = 1024;

struct Share {
  Executor* executor = nullptr;
  size_t rows = 0;  // That it reads or updates.
  Executor::Message run;
  Executor::Order order = Executor::Order::kInOrder;
};

// Whether this thread, which serves calls, has been off the CPU for a good part of the time since it last asked:
// usually because it had nothing to do. (On a machine with too few cores it may have waited for one; one more hand-off
// costs little beside that.)
bool HasIdled();

// Submits all shares. `idle` is asked only if there is something to hand over.
void Spread(std::vector<Share> shares, bool (*idle)() = HasIdled);

}  // namespace lodestone::server
