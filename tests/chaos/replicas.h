// What a chaos run's ps say of their copies: who owns which shard, and where shards have followers, whether each has
// two copies, and whether these are the same.
//
// Single-threaded, as PsCluster, but for Verify.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "grpcpp/channel.h"
#include "tests/chaos/ps_cluster.h"

namespace lodestone::chaos {

class Replicas {
 public:
  // `cluster` must outlive this.
  Replicas(const PsCluster* cluster, uint32_t shards) : cluster_(cluster), shards_(shards) {}

  // The shard map, of ps 0; an error while it does not tell.
  absl::StatusOr<ShardMap> Map();

  // OK if all ps, the coordinator among them, say that every shard's follower is in sync; else who does not.
  absl::Status InSync();

  // Ports of all ps that run.
  std::vector<int> Ports() const;

  // What a comparison of owners with followers came to.
  struct Comparison {
    uint64_t same = 0;                   // Shards.
    std::vector<std::string> different;  // In words.
    std::vector<std::string> missing;    // Those of which there was nothing to compare, in words.
  };
  // Has the ps at these ports compare what they own. Blocks. Thread-safe.
  static absl::StatusOr<Comparison> Verify(const std::vector<int>& ports);

 private:
  std::shared_ptr<grpc::Channel> ChannelTo(uint32_t server);

  const PsCluster* const cluster_;
  const uint32_t shards_;
  std::map<uint32_t, std::pair<int, std::shared_ptr<grpc::Channel>>> channels_;  // By server, with the port.
};

}  // namespace lodestone::chaos
