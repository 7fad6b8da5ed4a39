#include "server/monitoring/ps_metrics.h"

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/telemetry/metric_text.h"
#include "tests/configs/deployment.h"

namespace lodestone::server {
namespace {

constexpr double kNow = 1'700'000'000;

std::string TextOf(const v1::StatusResponse& status, bool ready = true) {
  MetricFamilies families;
  AddPsMetrics(status, ready, kNow, &families);
  return families.Text();
}

// A ps that has everything: a disk, followers, the coordinator, identities.
v1::StatusResponse FullStatus() {
  v1::StatusResponse status;
  v1::ServerStatus& server = *status.mutable_server();
  server.set_index(3);
  server.set_shards_owned(20);
  server.set_shards_total(64);
  server.set_pushes(1001);
  server.set_pushes_duplicate(12);
  server.set_pushes_refused(5);
  server.set_pulls(1003);
  server.set_push_bytes(uint64_t{1} << 40);
  server.set_pull_bytes(1005);
  server.set_broadcast_bytes(1006);
  server.set_broadcast_pinned_bytes(1007);
  server.set_table_bytes(5000);
  server.set_table_bytes_max(10000);
  for (const char* name : {"embedding", "mlp/0/weight"}) {
    v1::TableStatus& table = *status.add_tables();
    table.set_name(name);
    table.set_bytes(2500);
    table.set_rows(7);
    table.set_updates(9);
    table.set_evicted(2);
    table.set_not_admitted(4);
  }
  for (const uint32_t length : {2, 3}) status.add_executors()->set_queue_length(length);
  status.add_sessions();
  status.add_subscribers();
  for (const double seconds : {1.5, 4.5, 0.5}) status.add_waits()->set_seconds(seconds);
  v1::StorageStatus& storage = *status.mutable_storage();
  storage.set_log_bytes(800);
  storage.set_log_records(81);
  storage.set_log_commits(82);
  storage.set_log_error("no space left");
  storage.set_checkpoint("/there");
  storage.set_checkpoint_age_seconds(100);
  storage.set_checkpoint_bytes(84);
  storage.set_recovery_seconds(1.25);
  storage.set_replayed_records(86);
  v1::ReplicationStatus& replication = *status.mutable_replication();
  replication.set_shards_in_sync(18);
  replication.set_shards_alone(2);
  replication.set_lease_seconds(-0.5);
  for (const uint64_t lag : {10, 20}) {
    v1::FollowerStatus& follower = *replication.add_followers();
    follower.set_lag_records(lag);
    follower.set_lag_bytes(lag * 1000);
  }
  for (const auto& [role, calls] : {std::pair("worker", 100), std::pair("admin", 1), std::pair("worker", 10)}) {
    v1::IdentityStatus& identity = *status.add_identities();
    identity.set_name(absl::StrCat("stranger", calls));
    identity.set_role(role);
    identity.set_calls(calls);
    identity.set_denied(2);
    identity.set_throttled(3);
  }
  v1::ClusterStatus& cluster = *status.mutable_cluster();
  cluster.set_servers_expected(4);
  cluster.set_replicas(2);
  cluster.set_route_epoch(7);
  cluster.set_shards_in_sync(60);
  for (const bool alive : {true, false}) cluster.add_servers()->set_alive(alive);
  const auto add_worker = [&](bool alive, bool left, double silent, uint64_t samples, const char* waits) {
    v1::MemberStatus& worker = *cluster.add_workers();
    worker.set_alive(alive);
    worker.set_left(left);
    worker.set_last_contact_seconds(silent);
    worker.mutable_progress()->set_samples(samples);
    worker.mutable_progress()->set_waiting_for(waits);
  };
  add_worker(true, false, 0.25, 100, "");
  add_worker(true, false, 2.5, 10, "ps 1");
  add_worker(false, true, 500, 1, "ps 1");
  add_worker(false, false, 50, 1000, "");
  return status;
}

TEST(PsMetrics, TellWhatTheStatusSays) {
  const MetricText text(TextOf(FullStatus()));
  EXPECT_EQ(text.Of("lodestone_ps_info{index=\"3\"}"), 1);
  EXPECT_EQ(text.Of("lodestone_ps_ready"), 1);
  EXPECT_EQ(text.Of("lodestone_ps_shards_owned"), 20);
  EXPECT_EQ(text.Of("lodestone_ps_shards"), 64);
  EXPECT_EQ(text.Of("lodestone_ps_pushes_total"), 1001);
  EXPECT_EQ(text.Of("lodestone_ps_pushes_duplicate_total"), 12);
  EXPECT_EQ(text.Of("lodestone_ps_pushes_refused_total"), 5);
  EXPECT_EQ(text.Of("lodestone_ps_pulls_total"), 1003);
  EXPECT_EQ(text.Of("lodestone_ps_payload_bytes_total{direction=\"push\",codec=\"f32\"}"), 1099511627776.0);
  EXPECT_EQ(text.Of("lodestone_ps_payload_bytes_total{direction=\"pull\",codec=\"f32\"}"), 1005);
  EXPECT_EQ(text.Of("lodestone_ps_payload_bytes_total{direction=\"broadcast\",codec=\"f32\"}"), 1006);
  EXPECT_EQ(text.Of("lodestone_ps_broadcast_pinned_bytes"), 1007);
  EXPECT_EQ(text.Of("lodestone_ps_table_memory_bytes"), 5000);
  EXPECT_EQ(text.Of("lodestone_ps_table_memory_limit_bytes"), 10000);
  EXPECT_EQ(text.Of("lodestone_ps_security_warning"), 0);
  EXPECT_EQ(text.Of("lodestone_ps_executor_queue_length"), 5);
  EXPECT_EQ(text.Of("lodestone_ps_executors"), 2);
  EXPECT_EQ(text.Of("lodestone_ps_sessions"), 1);
  EXPECT_EQ(text.Of("lodestone_ps_subscribers"), 1);
  EXPECT_EQ(text.Of("lodestone_ps_waits"), 3);
  EXPECT_EQ(text.Of("lodestone_ps_wait_longest_seconds"), 4.5);
  EXPECT_EQ(text.Of("lodestone_ps_tables"), 2);
  EXPECT_EQ(text.Of("lodestone_ps_table_size_bytes{table=\"mlp/0/weight\"}"), 2500);
  EXPECT_EQ(text.Of("lodestone_ps_table_rows{table=\"embedding\"}"), 7);
  EXPECT_EQ(text.Of("lodestone_ps_table_updates_total{table=\"embedding\"}"), 9);
  EXPECT_EQ(text.Of("lodestone_ps_table_evicted_rows_total{table=\"embedding\"}"), 2);
  EXPECT_EQ(text.Of("lodestone_ps_table_not_admitted_rows_total{table=\"embedding\"}"), 4);
}

TEST(PsMetrics, TellOfTheDiskOfFollowersAndOfWhoCalls) {
  const MetricText text(TextOf(FullStatus()));
  EXPECT_EQ(text.Of("lodestone_ps_log_size_bytes"), 800);
  EXPECT_EQ(text.Of("lodestone_ps_log_records_total"), 81);
  EXPECT_EQ(text.Of("lodestone_ps_log_commits_total"), 82);
  EXPECT_EQ(text.Of("lodestone_ps_log_failing"), 1);
  EXPECT_EQ(text.Of("lodestone_ps_checkpoint_failing"), 0);
  EXPECT_EQ(text.Of("lodestone_ps_checkpoint_timestamp_seconds"), kNow - 100);
  EXPECT_EQ(text.Of("lodestone_ps_checkpoint_size_bytes"), 84);
  EXPECT_EQ(text.Of("lodestone_ps_recovery_duration_seconds"), 1.25);
  EXPECT_EQ(text.Of("lodestone_ps_recovery_records"), 86);
  EXPECT_EQ(text.Of("lodestone_ps_replication_shards_in_sync"), 18);
  EXPECT_EQ(text.Of("lodestone_ps_replication_shards_alone"), 2);
  EXPECT_EQ(text.Of("lodestone_ps_replication_followers"), 2);
  EXPECT_EQ(text.Of("lodestone_ps_replication_lag_records"), 30);
  EXPECT_EQ(text.Of("lodestone_ps_replication_lag_bytes"), 30000);
  EXPECT_EQ(text.Of("lodestone_ps_replication_lease_seconds"), -0.5);
  EXPECT_EQ(text.Of("lodestone_ps_calls_allowed_total{role=\"worker\"}"), 110);
  EXPECT_EQ(text.Of("lodestone_ps_calls_denied_total{role=\"worker\"}"), 4);
  EXPECT_EQ(text.Of("lodestone_ps_pushes_throttled_total{role=\"admin\"}"), 3);
}

TEST(PsMetrics, TellOfTheClusterWhereItIsCoordinated) {
  const MetricText text(TextOf(FullStatus()));
  EXPECT_EQ(text.Of("lodestone_cluster_servers_expected"), 4);
  EXPECT_EQ(text.Of("lodestone_cluster_replicas"), 2);
  EXPECT_EQ(text.Of("lodestone_cluster_route_epoch"), 7);
  EXPECT_EQ(text.Of("lodestone_cluster_shards_in_sync"), 60);
  EXPECT_EQ(text.Of("lodestone_cluster_servers{state=\"alive\"}"), 1);
  EXPECT_EQ(text.Of("lodestone_cluster_servers{state=\"dead\"}"), 1);
  EXPECT_EQ(text.Of("lodestone_cluster_servers{state=\"left\"}"), 0);
  EXPECT_EQ(text.Of("lodestone_cluster_workers{state=\"alive\"}"), 2);
  EXPECT_EQ(text.Of("lodestone_cluster_workers{state=\"left\"}"), 1);
  EXPECT_EQ(text.Of("lodestone_cluster_workers{state=\"dead\"}"), 1);
  EXPECT_EQ(text.Of("lodestone_cluster_samples"), 1111) << "the dead and the finished have done theirs";
  EXPECT_EQ(text.Of("lodestone_cluster_worker_silence_seconds"), 2.5) << "of the living";
  EXPECT_EQ(text.Of("lodestone_cluster_workers_waiting"), 1);
}

TEST(PsMetrics, WhatAPsHasNotIsNotThere) {
  v1::StatusResponse status;
  status.mutable_server()->set_index(1);
  const std::string text = TextOf(status, /*ready=*/false);
  EXPECT_EQ(MetricText(text).Of("lodestone_ps_ready"), 0);
  for (const char* part : {"lodestone_cluster_", "_log_", "_checkpoint_", "_replication_", "_calls_", "_table_rows"}) {
    EXPECT_THAT(text, testing::Not(testing::HasSubstr(part)));
  }
  // Before the first checkpoint there is no time of one.
  status.mutable_storage()->set_checkpoint_error("disk full");
  EXPECT_EQ(MetricText(TextOf(status)).Of("lodestone_ps_checkpoint_failing"), 1);
  EXPECT_EQ(MetricText(TextOf(status)).Of("lodestone_ps_checkpoint_damage"), 0);
  status.mutable_storage()->add_checkpoint_damage("checkpoints/mine/ps-0.shard-00003: its content is not");
  status.mutable_storage()->set_scrub_passes(3);
  EXPECT_EQ(MetricText(TextOf(status)).Of("lodestone_ps_checkpoint_damage"), 1);
  EXPECT_EQ(MetricText(TextOf(status)).Of("lodestone_ps_checkpoint_scrubs_total"), 3);
  EXPECT_FALSE(MetricText(TextOf(status)).Has("lodestone_ps_checkpoint_timestamp_seconds"));
  status.mutable_server()->set_security_warning("open to everybody");
  EXPECT_EQ(MetricText(TextOf(status)).Of("lodestone_ps_security_warning"), 1);
}

TEST(PsMetrics, TheFirstTablesHaveSeriesAndTheOthersOneTogether) {
  v1::StatusResponse status;
  for (int i = 0; i < kTablesWithSeries; ++i) {
    v1::TableStatus& table = *status.add_tables();
    table.set_name(absl::StrCat("table", i));
    table.set_rows(1);
  }
  EXPECT_FALSE(MetricText(TextOf(status)).Has("lodestone_ps_table_rows{table=\"(others)\"}"));
  for (int i = 0; i < 3; ++i) {
    v1::TableStatus& table = *status.add_tables();
    table.set_name(absl::StrCat("zzz", i));
    table.set_rows(10);
    table.set_bytes(100);
    table.set_updates(1000);
  }
  const MetricText text(TextOf(status));
  EXPECT_EQ(text.Of("lodestone_ps_tables"), kTablesWithSeries + 3);
  EXPECT_EQ(text.Of("lodestone_ps_table_rows{table=\"table199\"}"), 1);
  EXPECT_FALSE(text.Has("lodestone_ps_table_rows{table=\"zzz0\"}"));
  EXPECT_EQ(text.Of("lodestone_ps_table_rows{table=\"(others)\"}"), 30);
  EXPECT_EQ(text.Of("lodestone_ps_table_size_bytes{table=\"(others)\"}"), 300);
  EXPECT_EQ(text.Of("lodestone_ps_table_updates_total{table=\"(others)\"}"), 3000);
}

TEST(PsMetrics, PromtoolTakesThem) {
  if (!HasProgram("promtool")) GTEST_SKIP() << "promtool is not here";
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/metrics.txt";
  std::ofstream(path) << TextOf(FullStatus());
  int exit_code = 0;
  EXPECT_EQ(RunShell("promtool check metrics < " + path, &exit_code), "");
  EXPECT_EQ(exit_code, 0);
}

}  // namespace
}  // namespace lodestone::server
