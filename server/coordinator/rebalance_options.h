// The settings of the coordinator's own moves: coordinator.rebalance and rebalance_rule.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>

namespace lodestone::server {

// Which differences of ps are too great (rebalance_rule.h).
struct RebalanceRule {
  double difference = 0.25;                       // Parts.
  double bytes_min = 64 << 20;                    // Mean of the ps.
  double traffic_bytes_per_second_min = 1 << 20;  // Mean of the ps.
};

// When the rule is applied (rebalancer.h).
struct RebalanceOptions {
  bool automatic = false;
  RebalanceRule rule;
  int64_t sustained_ms = 30'000;
  int64_t shard_rest_ms = 600'000;
};

}  // namespace lodestone::server
