// The parts of files that a worker reads: all of each, or its share (data.read).
//
// Thread safety: pure functions but for the files that they look at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

// The units of a file from `begin` to `end` - 1: bytes of text (of lines that begin there), row groups of
// Parquet, rows of npy.
struct FilePart {
  std::string file;
  uint64_t begin = 0;
  uint64_t end = UINT64_MAX;
  uint64_t bytes = 0;  // About, for the progress.

  bool is_whole() const { return begin == 0 && end == UINT64_MAX; }
};

// All of each file.
std::vector<FilePart> WholeFiles(const std::vector<std::string>& files);

// The partition's share of files of `format`, which is text, Parquet or npy: of as many parts in a row as there are
// partitions each has one, as each has of samples (Partition::Has). Text and rows of npy are cut into blocks, 64 for
// each partition and more of a large file; a packed file is one part. INVALID_ARGUMENT, saying what to do, if none is
// left for the partition.
absl::StatusOr<std::vector<FilePart>> ShareOf(const std::vector<std::string>& files, v1::DataConfig::Format format,
                                              const Partition& partition);

}  // namespace lodestone::worker
