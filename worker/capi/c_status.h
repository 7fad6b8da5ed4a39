// The status of a call of the C interface: its code, and its message, which the thread keeps until its next call.
//
// Thread-safe: each thread has a message of its own.
#pragma once

#include "absl/status/status.h"

namespace lodestone::worker {

// Keeps the message of `status`, and returns its code (worker/capi/lodestone.h).
int Report(const absl::Status& status);
// What the last Report of this thread that was not OK kept; "" if there was none.
const char* LastErrorMessage();

}  // namespace lodestone::worker
