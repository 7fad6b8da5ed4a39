// The vectors of one tower of a model of type twotower, of data that has this tower's columns only: of a catalogue's
// items, or of users.
//
// Not thread-safe: it keeps scratch memory.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/model.pb.h"
#include "worker/data/dataset.h"
#include "worker/model/model.h"

namespace lodestone::psctl {

class TowerVectors {
 public:
  // `tower`: "user" or "item". INVALID_ARGUMENT if it is neither, or the model has no towers; UNIMPLEMENTED unless it
  // was trained on csv or Parquet files.
  static absl::StatusOr<TowerVectors> Create(std::shared_ptr<const v1::ModelDescription> model,
                                             const std::string& tower);

  // The model's description, with the tower's columns only: what to read samples by.
  const std::shared_ptr<const v1::ModelDescription>& description() const { return own_; }
  // A batch with all of the model's columns, of a batch with the tower's: the others are missing, or 0.
  void Widen(const worker::Batch& own, worker::Batch* all) const;

  size_t dim() const { return model_->two_tower().dim(); }
  // The vectors of the batch that `model` predicted last, [samples, dim].
  const float* Of(const worker::Model& model) const;
  // What vectors are multiplied by, so that the dot product of two is the score.
  float scale() const;

 private:
  TowerVectors() = default;

  std::shared_ptr<const v1::ModelDescription> model_;
  std::shared_ptr<const v1::ModelDescription> own_;
  bool is_user_ = false;
  std::vector<bool> own_numbers_;  // By the model's numeric columns.
  std::vector<bool> own_fields_;   // By its categorical ones.
  bool pooled_ = false;            // Batches of the model have offsets by field,
  bool own_pooled_ = false;        // and those of the tower.
};

}  // namespace lodestone::psctl
