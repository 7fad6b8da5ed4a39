// The result of a training run: what each worker wrote, put together, as JSON and as a table.
//
// Thread safety: pure functions and plain values.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/metrics/delay_counts.h"

namespace lodestone::psctl {

// Names and values, in order: ("loss", 0.45), ("auc", 0.81).
using Metrics = std::vector<std::pair<std::string, double>>;

// What one worker did.
struct WorkerSummary {
  uint64_t samples = 0;
  double seconds = 0;
  double staleness_pushes = 0;
  std::vector<worker::DelaySummary> delays;
  Metrics stage_seconds;  // Where the time of its steps went, by stage (worker/metrics/step_stages.h).
  std::string device;     // What computed: "cpu", "cuda:0 (NVIDIA H200)".
};

// A validation while the run trained.
struct ValidationSummary {
  uint64_t number = 0;
  uint64_t worker = 0;
  uint64_t steps = 0;    // Of that worker.
  uint64_t samples = 0;  // Of all workers.
  double seconds = 0;
  bool best = false;  // Of all.
  Metrics metrics;
};

struct RunSummary {
  std::string config;  // The file.
  std::string model;
  std::string device;    // What computed, of one worker; of several, per_worker says it.
  uint64_t samples = 0;  // Trained on, over all workers and epochs.
  double seconds = 0;    // Of training, without loading and evaluation.
  double samples_per_second = 0;
  double staleness_pushes = 0;  // Mean over all steps.
  // Of all workers: quantiles are the greatest of theirs.
  std::vector<worker::DelaySummary> delays;
  bool complete = true;       // All samples were trained; if not,
  std::string missing;        // what was not,
  bool interrupted = false;   // and whether that was wanted.
  std::string warning;        // Of what was learned, or not.
  std::string stopped_early;  // Why validations have ended training; empty: they have not.
  std::string best_model;     // The checkpoint that keeps the best model; empty: none does.
  std::vector<ValidationSummary> validations;
  uint32_t servers = 0;
  uint32_t workers = 0;
  Metrics train;
  Metrics test;
  Metrics best_reachable;  // Generated data only.
  Metrics stage_seconds;   // Of all workers together.
  std::vector<WorkerSummary> per_worker;
  std::string results;  // Folder that the workers wrote their results to; empty: none.
};

// Reads what a worker or psctl wrote with --summary. Errors name the file and what is wrong in it.
absl::StatusOr<RunSummary> ReadSummary(const std::string& path);

// One summary of all workers' ones: metrics are worker 0's, who alone evaluates; samples and the time in each stage are
// added; the slowest worker's seconds count; nothing is complete unless all are. REQUIRES: at least one.
RunSummary Combine(const std::vector<RunSummary>& workers);

// {"config", "model", "samples", "seconds", "samples_per_second", "staleness_pushes", "delay": {TABLE: {"pushes",
// "mean", "own", "p50", "p90", "max"}, …}, "complete", "stopped_early", "best_model", "validations":
// [{"number", "worker", "steps", "samples", "seconds", "best", metrics}, …], "interrupted", "missing", "warning",
// "servers", "workers", "train": {…}, "test": {…}, "best_reachable": {…}, "stage_seconds": {…}, "per_worker":
// [{"device", "samples", "seconds", "samples_per_second", "staleness_pushes", "stage_seconds": {…}}, …], "results"}. A
// value that is not finite is null; an empty group is left out.
std::string ToJson(const RunSummary& summary);
// For people.
std::string ToTable(const RunSummary& summary);

}  // namespace lodestone::psctl
