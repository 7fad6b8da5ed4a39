#include "worker/model/candidates.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "worker/model/model_description.h"
#include "worker/model/two_towers.h"

namespace lodestone::worker {
namespace {

// What takes a column out of the softmax: no score comes near it, and e to its power is 0.
constexpr float kNoCandidate = -1e30f;
constexpr uint64_t kReadSamples = 1024;

// The key of a sample's item.
Key ItemOf(const Batch& batch, size_t sample, size_t item_field, size_t field_count) {
  const bool by_field = batch.offsets.size() == batch.size * field_count + 1 && field_count > 1;
  return batch.keys[by_field ? batch.offsets[sample * field_count + item_field] : batch.offsets[sample] + item_field];
}

// A data set whose batches have candidates.
class CandidateDataset final : public Dataset {
 public:
  CandidateDataset(std::unique_ptr<const Dataset> samples, size_t item_field, size_t field_count,
                   std::shared_ptr<const ItemShares> shares)
      : samples_(std::move(samples)), item_field_(item_field), field_count_(field_count), shares_(std::move(shares)) {}

  uint64_t size() const override { return samples_->size(); }
  void Read(std::span<const uint64_t> indices, Batch* batch) const override {
    // Not every data set has weights to set, and those of the batch before are of other rewards.
    batch->weights.clear();
    samples_->Read(indices, batch);
    LODESTONE_CHECK(FillCandidates(item_field_, field_count_, shares_.get(), batch).ok());  // AddCandidates looked.
  }
  void WillRead(uint64_t first, uint64_t count) const override { samples_->WillRead(first, count); }

 private:
  const std::unique_ptr<const Dataset> samples_;
  const size_t item_field_;
  const size_t field_count_;
  const std::shared_ptr<const ItemShares> shares_;  // Null: no correction.
};

absl::Status CheckReward(float reward) {
  if (reward >= 0 && std::isfinite(reward)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the label ", reward,
                   " is no reward: twotower takes finite numbers that are not negative, 1 "
                   "for an item that was chosen"));
}

// The sum of a data set's rewards, each of which is checked, whose items are counted in `shares` unless that is null.
absl::StatusOr<double> LookThrough(const Dataset& data, size_t item_field, size_t field_count, ItemShares* shares) {
  Batch batch;
  std::vector<uint64_t> indices;
  double sum = 0;
  for (uint64_t at = 0; at < data.size(); at += indices.size()) {
    indices.clear();
    for (uint64_t i = at; i < std::min(data.size(), at + kReadSamples); ++i) indices.push_back(i);
    data.Read(indices, &batch);
    for (size_t i = 0; i < batch.size; ++i) {
      LODESTONE_RETURN_IF_ERROR(CheckReward(batch.labels[i]));
      sum += batch.labels[i];
      if (shares != nullptr) shares->Count(ItemOf(batch, i, item_field, field_count));
    }
  }
  return sum;
}

// `sum` is of `known` samples of `all`: where a worker has a part of them, others may have the rewards.
absl::Status CheckAnyReward(double sum, uint64_t known, uint64_t all) {
  if (sum > 0 || known == 0 || known < all) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "all labels of the training data are 0, and twotower takes them for rewards: nothing would be learned; set "
      "csv.label to the column of what was chosen, or to \"\"");
}

}  // namespace

float ItemShares::LogChance(Key item, size_t batch_size) const {
  const auto found = counts_.find(item);
  const double count = found == counts_.end() ? 1 : static_cast<double>(found->second);
  const double share = std::min(1.0, count / static_cast<double>(std::max<uint64_t>(1, samples_)));
  if (share == 1) return 0;
  return static_cast<float>(std::log(-std::expm1(static_cast<double>(batch_size) * std::log1p(-share))));
}

absl::Status FillCandidates(size_t item_field, size_t field_count, const ItemShares* shares, Batch* batch) {
  const size_t n = batch->size;
  batch->candidates.assign(2 * n, kNoCandidate);
  if (batch->weights.empty()) batch->weights.assign(n, 1.0f);
  absl::flat_hash_map<Key, uint32_t> places;
  for (size_t i = 0; i < n; ++i) {
    LODESTONE_RETURN_IF_ERROR(CheckReward(batch->labels[i]));
    batch->weights[i] *= batch->labels[i];
    const Key item = ItemOf(*batch, i, item_field, field_count);
    const auto [place, is_new] = places.emplace(item, static_cast<uint32_t>(i));
    batch->labels[i] = static_cast<float>(place->second);
    if (!is_new) continue;
    batch->candidates[i] = shares == nullptr ? 0.0f : -shares->LogChance(item, n);
    batch->candidates[n + i] = 0;
  }
  return absl::OkStatus();
}

absl::Status FillCandidates(const std::shared_ptr<const v1::ModelDescription>& model, Batch* batch) {
  const Schema schema = SchemaOf(model);
  LODESTONE_ASSIGN_OR_RETURN(const TwoTowerColumns towers, FindTowers(ConfigOf(*model).model().two_tower(), schema));
  return FillCandidates(towers.item_field, schema.field_count, /*shares=*/nullptr, batch);
}

absl::Status AddCandidates(const v1::Config& config, LoadedData* data) {
  LODESTONE_ASSIGN_OR_RETURN(const TwoTowerColumns towers, FindTowers(config.model().two_tower(), data->schema));
  const size_t fields = data->schema.field_count, item = towers.item_field;
  std::shared_ptr<ItemShares> shares;
  if (config.model().two_tower().popularity_correction()) shares = std::make_shared<ItemShares>();
  LODESTONE_ASSIGN_OR_RETURN(const double sum, LookThrough(*data->train, item, fields, shares.get()));
  LODESTONE_RETURN_IF_ERROR(CheckAnyReward(sum, data->train->size(), data->schema.train_samples));
  // The sample of the training data may have samples of partitions that are not this worker's.
  for (const std::unique_ptr<const Dataset>* set : {&data->train_sample, &data->test}) {
    if (*set != nullptr) LODESTONE_RETURN_IF_ERROR(LookThrough(**set, item, fields, nullptr).status());
  }
  data->best_reachable.reset();  // It is of labels as numbers, not as rewards.
  for (std::unique_ptr<const Dataset>* set : {&data->train, &data->test, &data->train_sample}) {
    if (*set != nullptr) *set = std::make_unique<CandidateDataset>(std::move(*set), item, fields, shares);
  }
  return absl::OkStatus();
}

}  // namespace lodestone::worker
