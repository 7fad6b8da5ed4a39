// The benchmark's suites, one function per name on its command line.
//
// Each starts the processes that it needs, adds its rows one by one, and ends the processes. Not thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/config.pb.h"
#include "tools/bench/harness/measure.h"

namespace lodestone::bench {

absl::Status RunLimit(const Options& options, const AddRow& add);
absl::Status RunDense(const Options& options, const AddRow& add);
absl::Status RunPushPull(const Options& options, const AddRow& add);
absl::Status RunSameMachine(const Options& options, const AddRow& add);
absl::Status RunEmbedding(const Options& options, const AddRow& add);
absl::Status RunKeys(const Options& options, const AddRow& add);
absl::Status RunScale(const Options& options, const AddRow& add);
absl::Status RunBroadcast(const Options& options, const AddRow& add);
absl::Status RunDurability(const Options& options, const AddRow& add);
absl::Status RunCheckpoint(const Options& options, const AddRow& add);
absl::Status RunStep(const Options& options, const AddRow& add);
absl::Status RunTrain(const Options& options, const AddRow& add);

struct Suite {
  const char* name;
  const char* meaning;  // For --help.
  absl::Status (*run)(const Options& options, const AddRow& add);
};
// All of them, in the order in which they run.
const std::vector<Suite>& Suites();

}  // namespace lodestone::bench
