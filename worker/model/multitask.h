// Several labels by networks that share their embeddings and layers: hard parameter sharing (Caruana 1997, "Multitask
// learning") or the multi-gate mixture of experts (Ma et al. 2018, "Modeling task relationships in multi-task learning
// with multi-gate mixture-of-experts").
//
//   shared_bottom:  logit_k = tower_k(bottom(x))
//   mmoe:           logit_k = tower_k(sum over experts e of softmax(x G_k)_e expert_e(x))
//
// x is the fields' embeddings beside the numeric features. Each head has a bias, and label_losses.h is its loss.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/config.pb.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {

inline constexpr uint32_t kExpertsMax = 256;  // As a configuration may have.

// Adds tables "bottom/..." or "expert/E/..." and "gate/K/weight", "tower/K/...", "embedding", and their term.
// INVALID_ARGUMENT of sparse samples or too many labels, without hidden layers, or if a loss weight is of no label. A
// weight's label is named as its column is in the file, or as csv.labels names it.
absl::Status PlanMultitask(const v1::Config& config, const Schema& schema, ModelPlan* plan);

}  // namespace lodestone::worker
