// The guard of processes that were forked from one with connections: neither its threads nor its connections exist in
// the child, where the state of both looks as if they did.
//
// Thread-safe.
#pragma once

#include "absl/status/status.h"

namespace lodestone::worker {

// From now on children of this process are refused. To be called before the first connection is made.
void GuardForks();
// FAILED_PRECONDITION, saying what to do, in a child that was forked after GuardForks.
absl::Status CheckNotForked();

}  // namespace lodestone::worker
