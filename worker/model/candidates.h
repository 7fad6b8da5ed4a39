// The items of a batch as candidates of each of its samples: what in-batch softmax compares a sample's own item with.
//
// An item is a candidate once, however many samples have it: in the place, and with the columns, of the first of them.
// So no sample has its own item among its negatives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

// How often the items of the training samples come, for the correction of their scores by log q, where q is the chance
// that a batch has the item: 1 - (1 - p)^n for a share p of the samples and n samples (Bengio and Senecal 2008; Yi et
// al. 2019, eq. 3, whose p is estimated from a stream).
//
// Thread-safe once all are counted.
class ItemShares {
 public:
  void Count(Key item) {
    ++counts_[item];
    ++samples_;
  }
  // log q; of an item that was not counted as of one that came once.
  float LogChance(Key item, size_t batch_size) const;

 private:
  absl::flat_hash_map<Key, uint64_t> counts_;
  uint64_t samples_ = 0;
};

// Makes candidates of a batch's items, which field `item_field` of `field_count` names: labels become the candidates'
// indices, what they were before (the rewards) multiplies the weights, and `candidates` is set. `shares`: null: no
// correction. INVALID_ARGUMENT if a reward is negative or not finite; the batch is spoilt then.
absl::Status FillCandidates(size_t item_field, size_t field_count, const ItemShares* shares, Batch* batch);

// The same of a batch that a described model of type twotower reads, without a correction.
absl::Status FillCandidates(const std::shared_ptr<const v1::ModelDescription>& model, Batch* batch);

// For a model of type twotower: gives the batches of all data sets candidates. INVALID_ARGUMENT, saying what to change,
// if the columns are not such as it takes, or rewards are negative or all 0.
absl::Status AddCandidates(const v1::Config& config, LoadedData* data);

}  // namespace lodestone::worker
