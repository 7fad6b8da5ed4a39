// Real ps whose shards have followers, and one client of all: what tests of failover and catch-up begin with.
//
// The ps are those of the test's own thread, which has to read what they say: whatever else waits for them, such as a
// call of the client, runs on another one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "proto/admin.pb.h"
#include "proto/table.pb.h"
#include "tests/chaos/ps_cluster.h"
#include "worker/client/client.h"

namespace lodestone {

class ReplicasFixture : public testing::Test {
 protected:
  static constexpr uint32_t kShards = 16;
  static constexpr uint64_t kElements = 1000;

  // Starts so many ps with cluster.replicas and `sets`. `own_disks`, `zones`: as PsCluster::Options.
  void StartCluster(uint32_t servers, std::vector<std::string> sets, bool own_disks = false, uint32_t replicas = 2,
                    std::vector<std::string> zones = {});

  // Tables of zeros whose pushes are added up: of kElements, and with rows of one value.
  static v1::TableSpec DenseOnes();
  static v1::TableSpec RowOnes();
  // Sets client_, and tables_ to those of `specs`.
  void Connect(const std::vector<v1::TableSpec>& specs);

  // Passes on what the ps say until `condition` holds; false if it never does.
  bool Await(const std::function<bool()>& condition);
  // Runs `use` on a thread of its own, and returns when it has ended.
  void Run(const std::function<void()>& use);

  v1::StatusResponse StatusOf(uint32_t server);
  bool AllInSync();
  void AwaitAllInSync() {
    ASSERT_TRUE(Await([this] { return AllInSync(); }));
  }
  // What each ps finds of the copies of its shards.
  std::vector<v1::VerifyReplicasResponse> Verify();
  // All shards get all their followers, which hold the same.
  void ExpectReplicasEqual();
  // What the client pulls of tables_[0].
  std::vector<float> PullDense();

  uint32_t replicas_ = 2;  // Of StartCluster.
  std::unique_ptr<chaos::PsCluster> cluster_;
  std::unique_ptr<worker::Client> client_;
  std::vector<worker::TableHandle> tables_;
};

}  // namespace lodestone
