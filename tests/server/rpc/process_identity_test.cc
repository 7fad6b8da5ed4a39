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

}  // namespace
}  // namespace lodestone::server
