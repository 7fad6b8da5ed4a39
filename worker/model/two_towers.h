// Two towers (Yi et al. 2019, "Sampling-bias-corrected neural modeling for large corpus item recommendations"): the
// vector u of a user's columns and v of an item's, each an mlp's output, of which u v / temperature is the score.
//
// Not thread-safe: it keeps the vectors, in the backend's memory. The backend must outlive it.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/scratch_array.h"
#include "worker/model/features.h"
#include "worker/model/mlp.h"
#include "worker/model/model_plan.h"
#include "worker/model/term.h"

namespace lodestone::worker {

// The columns of both towers, as indices of the schema's.
struct TowerColumns {
  std::vector<size_t> fields;
  std::vector<size_t> numbers;
};
struct TwoTowerColumns {
  TowerColumns user;
  TowerColumns item;
  size_t item_field = 0;  // Names the item.
};

// Finds the columns by their names. INVALID_ARGUMENT, naming the column, unless each is in one tower, both have some,
// and the first of the item's is categorical and has one value.
absl::StatusOr<TwoTowerColumns> FindTowers(const v1::TwoTowerConfig& config, const Schema& schema);

// twotower: tables "user/0/weight", ..., "item/0/weight", ...
absl::Status PlanTwoTower(const v1::Config& config, const Schema& schema, ModelPlan* plan);

class TwoTowers {
 public:
  // REQUIRES: plan.two_tower.
  TwoTowers(const ModelPlan& plan, kernels::Backend* backend);

  // Computes the vectors of a batch.
  void Forward(const BatchView& batch, const ParameterPointers& parameters, std::optional<uint64_t> dropout_seed);
  // Of the last Forward, until the next: [samples, dim]. The dot product of two is `scale` times the score.
  const float* user() const { return towers_[0].vectors; }
  const float* item() const { return towers_[1].vectors; }
  // The score of each sample's user with each sample's item, [samples, samples].
  void AllScores(size_t samples, float* scores);
  // The score of each sample's user with its own item, [samples].
  void OwnScores(size_t samples, float* scores);
  // Adds the gradients of all tables, given that of AllScores. The arguments are those of Forward.
  void Backward(const BatchView& batch, const ParameterPointers& parameters, const float* dscores,
                const GradientPointers& gradients);

 private:
  struct Tower {
    Tower(const TowerPlan& plan, size_t tables_begin, float dropout, kernels::Backend* backend);

    const TowerPlan plan;
    const size_t begin;  // Of its tables.
    Mlp mlp;
    const float* vectors = nullptr;
    kernels::ScratchArray<float> x;           // [samples, width]
    kernels::ScratchArray<float> normalized;  // [samples, dim]
    kernels::ScratchArray<float> inverses;    // [samples]
    kernels::ScratchArray<float> dvectors;    // [samples, dim]
    kernels::ScratchArray<float> dx;          // [samples, width]
  };

  // Copies the columns of a tower out of the vectors of all features, or back into them.
  void Take(const Tower& tower, size_t samples, const float* all, float* x);
  void GiveBack(const Tower& tower, size_t samples, const float* x, float* all);

  const size_t dim_;
  const float scale_;  // Of dot products.
  const bool normalizes_;
  kernels::Backend* const backend_;
  Features features_;
  std::vector<Tower> towers_;          // User, item.
  kernels::ScratchArray<float> part_;  // Of a run of columns.
  kernels::ScratchArray<float> dall_;  // [samples, features]
  kernels::ScratchArray<float> products_;
  kernels::ScratchArray<float> ones_;  // [dim]
};

}  // namespace lodestone::worker
