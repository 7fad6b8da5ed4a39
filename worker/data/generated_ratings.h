// Ratings made from a seed: a planted matrix factorization plus normal noise.
//
//   rating = 3.5 + user's bias + item's bias + user's factors · item's factors + noise
// Users and items are drawn uniformly. All parameters are hashes of (seed, user) and (seed, item). Factor r has
// amplitude 1 / (1 + r), as real ratings have few strong factors and many weak ones.
#pragma once

#include <cstdint>
#include <functional>

#include "proto/config.pb.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

// As GenerateClicks; two fields, user and item, and best_reachable is the RMSE of the planted model itself.
LoadedData GenerateRatings(const v1::GeneratedConfig& config, uint64_t seed, Partition partition, bool with_test,
                           const std::function<void(uint64_t done, uint64_t total)>& progress);

}  // namespace lodestone::worker
