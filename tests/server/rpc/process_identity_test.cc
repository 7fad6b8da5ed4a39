#include "server/rpc/process_identity.h"

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

TEST(ProgressOf, SumsTablesAndFollowers) {
  v1::StatusResponse status;
  v1::ServerStatus* const server = status.mutable_server();
  server->set_resident_bytes(1);
  server->set_table_bytes(2);
  server->set_pushes_per_second(3.5);
  server->set_pulls_per_second(4.5);
  server->set_pushes_refused(5);
  server->set_http("host:8080");
  for (const uint64_t rows : {10, 20}) status.add_tables()->set_rows(rows);
  for (const uint64_t lag : {1, 6}) status.mutable_replication()->add_followers()->set_lag_records(lag);
  const v1::ServerProgress progress = ProgressOf(status);
  EXPECT_EQ(progress.resident_bytes(), 1);
  EXPECT_EQ(progress.table_bytes(), 2);
  EXPECT_EQ(progress.pushes_per_second(), 3.5);
  EXPECT_EQ(progress.pulls_per_second(), 4.5);
  EXPECT_EQ(progress.pushes_refused(), 5);
  EXPECT_EQ(progress.http(), "host:8080");
  EXPECT_EQ(progress.rows(), 30);
  EXPECT_EQ(progress.lag_records(), 7);
}

TEST(ProgressOf, LeavesTheLoadsOfShardsOutWhereTheyAreTooManyForAHeartbeat) {
  v1::StatusResponse status;
  status.mutable_server()->set_resident_bytes(1);
  for (uint32_t shard = 0; shard < 4096; ++shard) {
    v1::ShardLoad* const load = status.add_shards();
    load->set_shard(shard);
    load->set_bytes(1 << 20);
    load->set_push_bytes_per_second(1e6);
  }
  EXPECT_EQ(ProgressOf(status).shards_size(), 4096);
  v1::ServerProgress loads;
  *loads.mutable_shards() = status.shards();
  EXPECT_EQ(ProgressOf(status, loads.ByteSizeLong()).shards_size(), 4096);
  const v1::ServerProgress without = ProgressOf(status, loads.ByteSizeLong() - 1);
  EXPECT_EQ(without.shards_size(), 0);
  EXPECT_EQ(without.resident_bytes(), 1) << "the rest is there";
}

}  // namespace
}  // namespace lodestone::server
