// Where a trained model's parameters come from: a file or a running cluster. What predicts, evaluates and serves sees
// no difference.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/model.pb.h"
#include "worker/model/keyed_batch.h"

namespace lodestone::psctl {

// The elements of a model's dense tables, in the order of Model::tables().
using DenseTables = std::vector<std::vector<float>>;

// The parameters that the predictions of one batch need. Its memory is used again. Not thread-safe.
struct BatchParameters {
  std::shared_ptr<const DenseTables> dense;  // Keeps what `pointers` point to.
  // By embedding table, in the order of Model::tables(): [keys of its group, dim].
  std::vector<std::vector<float>> rows;
  std::vector<const float*> pointers;  // To all tables, as Model::Predict takes them.
  // Of a cluster: the sum of its shards' versions, as far as they are known; it grows with every update. Of a file: 0.
  uint64_t version = 0;
};

class ParameterSource {
 public:
  virtual ~ParameterSource() = default;

  // What the model is; it was checked.
  virtual const std::shared_ptr<const v1::ModelDescription>& description() const = 0;
  // For people: the file's path, or "the cluster of HOST:PORT".
  virtual const std::string& name() const = 0;

  // Gives the dense tables, and the rows of the batch's keys: the initial values of those that have none. REQUIRES:
  // they were counted by the model's field groups (ModelPlan::groups).
  virtual absl::Status Read(const worker::KeyedBatch& batch, BatchParameters* parameters) = 0;

  // Not OK once Read will fail for ever.
  virtual absl::Status Health() const = 0;
};

}  // namespace lodestone::psctl
