// Damages the logs of a ps that does not run, as a crash of the machine or a bad disk would. Reads no more of the
// format than where records end (common/io/record_file.h).
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lodestone::chaos {

// A segment of a log.
struct SegmentFile {
  std::string path;
  uint64_t generation = 0;
  uint64_t log = 0;
  uint64_t segment = 0;
};

// The newest segment of each log of the newest generation in `folder`, "…/ps-0/log". NOT_FOUND if there is none.
absl::StatusOr<std::vector<SegmentFile>> NewestSegments(const std::string& folder);

// The bytes from the start of a file of records that are whole records.
struct RecordsExtent {
  uint64_t records = 0;
  uint64_t bytes = 0;
  uint64_t last = 0;   // Where the last of them begins.
  bool clean = false;  // Nothing follows but zeros.
};
absl::StatusOr<RecordsExtent> ExtentOf(const std::string& path);

// Writes the beginning of a record behind the last one, as if the machine had died while it was written: a part of the
// first record of the file, after which there may be zeros. Returns what it did; nullopt if something follows the last
// record already.
absl::StatusOr<std::optional<std::string>> TearTail(const std::string& path, uint64_t random);

// A bit that was flipped.
struct FlippedBit {
  std::string path;
  uint64_t offset = 0;  // Of its byte.
  uint64_t record = 0;  // Where the record begins that it is in.
  uint8_t mask = 0;
};
// A bit of a whole record.
absl::StatusOr<FlippedBit> ChooseBit(const std::string& path, uint64_t random);
// A bit of a file of any kind; NOT_FOUND if it is empty.
absl::StatusOr<FlippedBit> ChooseBitAnywhere(const std::string& path, uint64_t random);
// Flips it, or back. NOT_FOUND if the file is gone.
absl::Status Flip(const FlippedBit& bit);

// What ps `server` has on disk beside its logs: its state, its part of all checkpoints. Sorted.
std::vector<std::string> OtherFiles(const std::string& data_dir, uint32_t server);

}  // namespace lodestone::chaos
