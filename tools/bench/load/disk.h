// The disk's limits: files that are written and read as dd does it.
//
// Thread safety: functions may be called by any thread; a load belongs to one.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/bench/harness/measure.h"
#include "tools/bench/harness/peer.h"

namespace lodestone::bench {

// Appends order.depth pieces of order.request_bytes to a file, then waits until the disk has them: that many
// operations. The file begins anew with each order.
Peer::MakeLoad AppendLoad(const std::string& path);

// dd of=PATH bs=1M conv=fdatasync, and removes the file. An operation is a byte.
absl::StatusOr<Sample> WriteFile(const std::string& path, uint64_t bytes);

// dd if=FILE of=/dev/null bs=1M of every file below `folder`, one after the other. An operation is a byte.
absl::StatusOr<Sample> ReadFiles(const std::string& folder);

// Has the disk take what waits to be written to the filesystem of `folder`, and the page cache let go of the files
// below it: the next reader reads the disk. Returns their bytes.
absl::StatusOr<uint64_t> Chill(const std::string& folder);

}  // namespace lodestone::bench
