// TensorBoard's event files: records of Event (proto/tensorboard.proto), framed as TensorFlow frames its records,
//   uint64 length, uint32 masked CRC32C of the length, the data, uint32 masked CRC32C of the data
// in little-endian order. A file begins with TensorBoardVersion and goes on with TensorBoardScalars.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace lodestone::worker {

// A number of a series.
struct TensorBoardScalar {
  std::string tag;  // The series: "loss", "test/auc".
  double value = 0;
};

// "events.out.tfevents.SECONDS.HOST.PID", by which TensorBoard knows an event file. Files of one folder are read in the
// order of their names, as one run.
std::string TensorBoardFileName(int64_t seconds, const std::string& host, int64_t pid);

// The first record of a file. `wall_seconds`: since 1970.
std::string TensorBoardVersion(double wall_seconds);

// A record with the values of several series at one step.
std::string TensorBoardScalars(double wall_seconds, int64_t step, std::span<const TensorBoardScalar> scalars);

}  // namespace lodestone::worker
