// The validation of a model while it is trained (train.validate): metrics of held-out samples, by the first
// worker that has come so far, while the others go on. The coordinator gives each validation to one worker, and decides
// which was the best so far and whether training ends early.
//
// A validation reads all values that it needs at once, in one pull: dense values, and the rows of all keys of its
// samples. Each shard is read at one version, unless more than one message is needed for its part; then the oldest is
// reported. The samples are the same for all workers: each 2^n-th held-out one.
//
// Not thread-safe: for the thread that trains, between two steps. The context's objects must outlive it.
// Memory, from the first validation on: a copy of the dense values, and the rows of the samples' keys.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/coordinator.pb.h"
#include "worker/client/types.h"
#include "worker/metrics/evaluation_metrics.h"
#include "worker/training/training_context.h"
#include "worker/training/validation_schedule.h"

namespace lodestone::worker {

class Validator {
 public:
  // Null without train.validate. INVALID_ARGUMENT if there are no held-out samples.
  static absl::StatusOr<std::unique_ptr<Validator>> Create(const TrainingContext& context);
  ~Validator();

  // The first step begins.
  void Start() { start_ms_ = context_.time->NowMs(); }
  // After a step: whether a validation is due that this worker is to do. Asks the coordinator, if a mark was passed.
  // `position`: how far the training has come, in samples of data.train, of all epochs: where ranges are leased, that
  // of all workers; else of this one.
  bool IsDue(uint64_t steps, uint64_t samples, uint64_t position);
  // Does it, and reports it. REQUIRES: IsDue was true; no push of this worker is unacknowledged. Errors are of reading
  // and computing; where the coordinator cannot be told, that is logged, and training goes on.
  absl::Status Validate(uint64_t steps);

 private:
  struct Frozen;  // What the samples' metrics are computed from.

  explicit Validator(const TrainingContext& context);

  double Seconds() const { return 1e-3 * static_cast<double>(context_.time->NowMs() - start_ms_); }
  // Reads the samples' keys.
  absl::Status Prepare();
  // Reads all values, and gives the versions.
  absl::StatusOr<ShardVersions> Read();
  absl::StatusOr<EvaluationMetrics::Result> ComputeMetrics();
  // Makes frozen_->item of `count` samples from the `begin`-th on.
  absl::Status FillItem(size_t begin, size_t count);
  void Report(const v1::Validation& validation, const EvaluationMetrics::Result& result);
  // Keeps the parameters of the validation, the best so far; `state` says what is kept of those before.
  void Keep(uint64_t number, const v1::ValidationState& state);

  const TrainingContext context_;
  const v1::ValidateConfig& config_;
  const ValidationSchedule schedule_;
  std::vector<const TableHandle*> row_tables_;
  int64_t start_ms_ = 0;
  uint64_t passed_ = 0;           // Marks that were claimed, here or elsewhere, or missed.
  uint64_t cluster_samples_ = 0;  // As the coordinator said with the claim, but no fewer than this worker's.
  std::unique_ptr<Frozen> frozen_;
};

}  // namespace lodestone::worker
