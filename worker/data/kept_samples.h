// What a worker keeps of the samples of files: its partition, the test set, and the sample of all partitions. What
// data.memory_max_bytes has no room for goes to data.spill_dir, or is an error.
//
// Not thread-safe. Owns the samples.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/base/status.h"
#include "proto/config.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/even_sample.h"
#include "worker/data/sample_limits.h"

namespace lodestone::worker {

// `Data`: StoredDataset, or what has its functions but Finish and Read.
template <typename Data>
class KeptSamples {
 public:
  // `make` gives empty ones; beside them are `beside` bytes in memory. `config` must outlive it.
  template <typename Make>
  KeptSamples(const v1::DataConfig& config, const SampleLimits& limits, uint64_t beside, const Make& make)
      : config_(config),
        limits_(limits),
        beside_(beside),
        train_(make()),
        train_sample_(make(), std::max<uint64_t>(1, limits.train_sample)),
        test_(make(), limits.test) {}

  // A training sample, as Data::Append takes it; `own`: it is of this partition.
  template <typename... Sample>
  absl::Status AddTrain(bool own, const Sample&... sample) {
    if (own) train_->Append(sample...);
    if (limits_.train_sample > 0) train_sample_.Offer(sample...);
    return MakeRoom();
  }
  template <typename... Sample>
  absl::Status AddTest(const Sample&... sample) {
    test_.Offer(sample...);
    return MakeRoom();
  }
  // An error if there is no room for so many bytes more.
  absl::Status CheckRoom(uint64_t bytes) const {
    return spills() || needed() + bytes <= config_.memory_max_bytes() ? absl::OkStatus() : TooMuchData(config_);
  }

  // Gives them away: `finish` is called with each, and whether it is the test set. Call once.
  template <typename Finish>
  absl::Status Give(const Finish& finish, LoadedData* data) {
    std::unique_ptr<Data> sample = train_sample_.Take(), test = test_.Take();
    LODESTONE_RETURN_IF_ERROR(finish(train_.get(), false));
    LODESTONE_RETURN_IF_ERROR(finish(sample.get(), false));
    LODESTONE_RETURN_IF_ERROR(finish(test.get(), true));
    data->memory_bytes = train_->bytes() + sample->bytes() + test->bytes();
    data->spilled_bytes = train_->spilled_bytes() + test->spilled_bytes();
    data->train = std::move(train_);
    if (limits_.train_sample > 0) data->train_sample = std::move(sample);
    if (test->size() > 0) data->test = std::move(test);
    return absl::OkStatus();
  }

 private:
  // The part of the memory that the sample of all partitions may take where the others can go to a disk: one n-th.
  static constexpr uint64_t kSampleShare = 4;

  bool spills() const { return !config_.spill_dir().empty(); }
  uint64_t needed() const { return beside_ + train_->bytes() + test_.bytes(); }
  // Bytes for the sample of all partitions: otherwise what the others leave.
  uint64_t SampleRoom() const {
    if (spills()) return config_.memory_max_bytes() / kSampleShare;
    return config_.memory_max_bytes() - std::min(config_.memory_max_bytes(), needed());
  }
  absl::Status MakeRoom() {
    LODESTONE_RETURN_IF_ERROR(MoveToDisk());
    if (limits_.train_sample > 0) train_sample_.FitInto(SampleRoom());
    return absl::OkStatus();
  }
  // Moves to a disk what memory has no room for; what is left then are chunks that are not whole.
  absl::Status MoveToDisk() {
    const uint64_t sample = spills() && limits_.train_sample > 0 ? train_sample_.bytes() : 0;
    while (needed() + sample > config_.memory_max_bytes()) {
      if (!spills()) return TooMuchData(config_);
      LODESTONE_ASSIGN_OR_RETURN(bool spilled, train_->SpillNewest(config_.spill_dir()));
      if (!spilled) {
        LODESTONE_ASSIGN_OR_RETURN(spilled, test_.data()->SpillNewest(config_.spill_dir()));
      }
      if (!spilled) return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  const v1::DataConfig& config_;
  const SampleLimits limits_;
  const uint64_t beside_;
  std::unique_ptr<Data> train_;
  EvenSample<Data> train_sample_;
  EvenSample<Data> test_;
};

}  // namespace lodestone::worker
