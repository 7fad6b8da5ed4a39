// The result files of a run: FOLDER/worker-INDEX.jsonl, one JSON object per line, and the same numbers for
// TensorBoard in FOLDER/worker-INDEX/events.out.tfevents.…: each worker is a run of its own there.
//
// Lines, by their field "event":
//   run: the first one, and one more after each restart: time, cluster, version, commit, seed, "device" (what computes:
//   cpu, or a CUDA device with its name), the configuration.
//   training: every worker.results_every_ms: what has happened since the line before; "stage_seconds" is where the time
//   of the steps went (worker/metrics/step_stages.h); "metric" is {"auc": …}, or accuracy or rmse, whichever the model
//   is judged by, of what it said of the latest samples before it learned from them
//   (worker/metrics/progressive_metric.h), as the coordinator got it last. In TensorBoard it is "auc", beside "loss";
//   what the evaluation finds is "test/auc" and "train/auc". "delay" is the mean number of updates, own and others',
//   between reading and application, of the table that had most; "staleness_pushes" is the others' part of it.
//   validation: the metrics of held-out samples while it trained, by this worker, with the number of the validation,
//   its steps ("clock"), the samples of all workers, and whether it was the best so far; "validation/auc" in
//   TensorBoard. result: the last of a run that came to its end: all of it, with the metrics if this worker has
//   evaluated, "delay" by table, "complete" (whether all samples were trained; else "missing" says which were not),
//   "stopped_early" with the reason if validations have ended it, and "warning" if the loss has not fallen. failed: the
//   last of one that did not, with the reason.
// "time" is in UTC, "seconds" count from the first step. A number that is not finite, or not known, is null.
//
// Each line and each record is written with one call as soon as it is there, whole or not at all. What cannot be
// written (the disk is full) is left out; that is logged once, and training goes on.
//
// Not thread-safe: for the thread that trains.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time_source.h"
#include "common/io/file.h"
#include "proto/config.pb.h"
#include "proto/coordinator.pb.h"
#include "worker/metrics/evaluation_metrics.h"
#include "worker/metrics/step_stages.h"
#include "worker/report/results_file.h"
#include "worker/report/summary.h"

namespace lodestone::worker {

class Results {
 public:
  // Makes worker.results_dir of `config`, if it is missing, and writes the run's first line. `device`: what computes,
  // kernels::Backend::name(). Errors name the path. `time` must outlive it.
  static absl::StatusOr<std::unique_ptr<Results>> Open(const v1::Config& config, uint32_t worker,
                                                       const std::string& device, const TimeSource* time);
  // The same, with other system calls, which must outlive it too.
  static absl::StatusOr<std::unique_ptr<Results>> Open(const v1::Config& config, uint32_t worker,
                                                       const std::string& device, const TimeSource* time,
                                                       const FileCalls* calls);

  // The first step begins; so many samples are to be trained on.
  void StartTraining(uint64_t samples_total);
  // After a step. `metric`: Progress::metric().
  void Step(const StepCounts& counts, const NamedMetric& metric);
  // This worker has validated the model; `best`: it is the best so far.
  void Validated(const v1::Validation& validation, const EvaluationMetrics::Result& result, bool best);
  // The run has come to its end.
  void Finish(const Summary& summary);
  // The run has ended before it.
  void Fail(const absl::Status& status);

 private:
  Results(int64_t every_ms, const TimeSource* time, ResultsFile lines, ResultsFile events)
      : every_ms_(every_ms), time_(time), lines_(std::move(lines)), events_(std::move(events)) {}

  // Writes what the steps since the last line have done, if there were any.
  void WriteTraining();
  // Writes both; an empty one is left out.
  void Append(const std::string& line, const std::string& record);

  const int64_t every_ms_;
  const TimeSource* const time_;
  ResultsFile lines_;
  ResultsFile events_;
  bool warned_ = false;

  uint64_t samples_total_ = 0;
  int64_t start_ms_ = 0;
  StepCounts newest_;
  NamedMetric newest_metric_;
  int64_t newest_ms_ = 0;  // When that step ended.
  // At the last line of training, and what has come since then.
  int64_t written_ms_ = 0;
  StepCounts written_;
  double loss_sum_ = 0;
  double weight_ = 0;
};

}  // namespace lodestone::worker
