#include "tools/psctl/verbs/status_table.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::psctl {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

v1::StatusResponse Example() {
  v1::StatusResponse status;
  v1::ServerStatus* server = status.mutable_server();
  server->set_index(1);
  server->set_address("127.0.0.1:7001");
  server->set_shards_owned(32);
  server->set_shards_total(64);
  server->set_pushes(12345);
  server->set_pushes_refused(2);
  server->set_last_refusal("table embedding: gradient is not finite");
  v1::TableStatus* table = status.add_tables();
  table->set_name("embedding");
  table->set_shape("embedding dim 16");
  table->set_rows(987654);
  return status;
}

TEST(StatusText, ShowsTheServerAndItsTables) {
  const std::string text = StatusText(Example());
  EXPECT_THAT(text, HasSubstr("ps 1 at 127.0.0.1:7001"));
  EXPECT_THAT(text, HasSubstr("32 of 64"));
  EXPECT_THAT(text, HasSubstr("12,345"));
  EXPECT_THAT(text, HasSubstr("gradient is not finite"));
  EXPECT_THAT(text, HasSubstr("embedding dim 16"));
  EXPECT_THAT(text, HasSubstr("987,654"));
}

TEST(StatusText, ShowsWhatIsOnDiskAndWhyNothingCanBeWritten) {
  v1::StatusResponse status = Example();
  EXPECT_THAT(StatusText(status), Not(HasSubstr("storage")));
  v1::StorageStatus* storage = status.mutable_storage();
  storage->set_dir("data/ps-1");
  storage->set_durability("machine");
  storage->set_log_bytes(3 << 20);
  storage->set_checkpoint("data/checkpoints/auto-ps1-000007");
  EXPECT_THAT(StatusText(status), HasSubstr("data/ps-1, durability machine, log 3.0 MiB"));
  EXPECT_THAT(StatusText(status), HasSubstr("auto-ps1-000007"));
  EXPECT_THAT(StatusText(status), Not(HasSubstr("REFUSED")));
  storage->set_log_error("UNAVAILABLE: no space left on device");
  EXPECT_THAT(StatusText(status), HasSubstr("PUSHES ARE REFUSED: UNAVAILABLE: no space left on device"));
  EXPECT_THAT(StatusText(status), Not(HasSubstr("DAMAGED")));
  EXPECT_THAT(StatusText(status), Not(HasSubstr("scrubbed")));
  storage->set_scrub_passes(2);
  storage->set_scrub_bytes(5 << 20);
  storage->add_checkpoint_damage("checkpoints/mine/ps-1.shard-00003: its content is not what was written");
  EXPECT_THAT(StatusText(status), HasSubstr("read again 2 times since the start, 5.0 MiB in the newest pass"));
  EXPECT_THAT(StatusText(status), HasSubstr("A CHECKPOINT IS DAMAGED: checkpoints/mine/ps-1.shard-00003: its content"));
}

TEST(StatusText, ShowsReplicasAndWhatIsNotSafeWithoutThem) {
  v1::StatusResponse status = Example();
  status.mutable_cluster()->set_replicas(1);
  EXPECT_THAT(StatusText(status), Not(HasSubstr("replicas")));
  EXPECT_THAT(StatusText(status), Not(HasSubstr("follower")));
  status.mutable_cluster()->set_replicas(2);
  status.mutable_cluster()->set_shards_in_sync(61);
  v1::ReplicationStatus* replication = status.mutable_replication();
  replication->set_shards_in_sync(29);
  replication->set_shards_alone(3);
  replication->set_shards_following(32);
  replication->set_shards_followed(30);
  replication->set_lease_seconds(4.25);
  v1::FollowerStatus* follower = replication->add_followers();
  follower->set_server(2);
  follower->set_shards(16);
  follower->set_shards_in_sync(13);
  follower->set_lag_records(1234);
  follower->set_lag_bytes(3 << 20);
  std::string text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("2 replicas, 61 of 64 shards in sync"));
  EXPECT_THAT(text, HasSubstr("of the 32 shards it owns 29 in sync, 3 ALONE; follows 32, 30 of them so far; "
                              "lease ends in 4.2 s"));
  EXPECT_THAT(text, HasSubstr("ps 2          16       13        1,234    3.0 MiB   0 B"));
  replication->set_shards_alone(0);
  replication->set_shards_followed(32);
  replication->set_lease_seconds(-1);
  text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("29 in sync; follows 32; THE LEASE HAS ENDED"));
}

TEST(StatusText, LeavesOutWhatIsEmpty) {
  const std::string text = StatusText(Example());
  EXPECT_THAT(text, Not(HasSubstr("workers")));
  EXPECT_THAT(text, Not(HasSubstr("waits")));
}

TEST(StatusText, ShowsWorkersWithClockDelayAndLastContact) {
  v1::StatusResponse status = Example();
  v1::MemberStatus* worker = status.mutable_cluster()->add_workers();
  worker->set_peer("host:4711");
  worker->set_alive(true);
  worker->set_last_contact_seconds(0.25);
  worker->mutable_progress()->set_phase(v1::PHASE_TRAINING);
  worker->mutable_progress()->set_clock(4242);
  worker->mutable_progress()->add_delays()->set_mean(1.5f);
  worker->mutable_progress()->add_delays()->set_mean(0.5f);
  const std::string text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("host:4711  alive"));
  EXPECT_THAT(text, HasSubstr("0.2 s"));
  EXPECT_THAT(text, HasSubstr("training"));
  EXPECT_THAT(text, HasSubstr("4,242"));
  EXPECT_THAT(text, HasSubstr("1.5"));
}

TEST(StatusText, ShowsWhatWorkersComputeOnIfItIsNotTheCpuOfAll) {
  v1::StatusResponse status = Example();
  v1::WorkerProgress* const first = status.mutable_cluster()->add_workers()->mutable_progress();
  first->set_device("cpu");
  status.mutable_cluster()->add_workers();  // Of an older version.
  EXPECT_THAT(StatusText(status), Not(HasSubstr("device")));
  v1::WorkerProgress* const third = status.mutable_cluster()->add_workers()->mutable_progress();
  third->set_device("cuda:1 (NVIDIA H200)");
  third->set_waiting_for("ps 1");
  const std::string text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("delay  device                waits for"));
  EXPECT_THAT(text, HasSubstr("0.0  cpu"));
  EXPECT_THAT(text, HasSubstr("0.0  cuda:1 (NVIDIA H200)  ps 1"));
}

TEST(StatusText, ShowsWhatServersSayOfThemselves) {
  v1::StatusResponse status = Example();
  v1::MemberStatus* server = status.mutable_cluster()->add_servers();
  server->set_index(2);
  server->set_peer("host:7002");
  server->set_shards_owned(20);
  server->set_shards_following(12);
  server->mutable_server()->set_pushes_per_second(1234);
  server->mutable_server()->set_resident_bytes(3 << 20);
  server->mutable_server()->set_lag_records(99);
  EXPECT_THAT(StatusText(status), HasSubstr("    2  host:7002  dead          0.0 s      20       12     1,234"));
  EXPECT_THAT(StatusText(status), HasSubstr("3.0 MiB   99"));
}

TEST(StatusText, ShowsIdentitiesAndWarnsOfAnOpenPs) {
  v1::StatusResponse status = Example();
  EXPECT_THAT(StatusText(status), Not(HasSubstr("identity")));
  status.mutable_server()->set_security_warning("open to any caller that can connect");
  status.mutable_server()->set_http("host:8080");
  v1::IdentityStatus* identity = status.add_identities();
  identity->set_name("trainer");
  identity->set_role("worker");
  identity->set_denied(3);
  EXPECT_THAT(StatusText(status), HasSubstr("  WARNING: open to any caller that can connect\n"));
  EXPECT_THAT(StatusText(status), HasSubstr("  http       host:8080\n"));
  EXPECT_THAT(StatusText(status), HasSubstr("trainer   worker      0       3"));
}

TEST(StatusText, PaintsWhatIsWrongAndObeysNoPeer) {
  v1::StatusResponse status = Example();
  v1::MemberStatus* worker = status.mutable_cluster()->add_workers();
  worker->set_peer("\x1b[2Jevil");
  const std::string text = StatusText(status, Painter(true));
  EXPECT_THAT(text, HasSubstr("\x1b[31mdead\x1b[0m"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b[2J")));
  EXPECT_THAT(StatusText(status), Not(HasSubstr("\x1b")));
}

TEST(StatusText, SaysInOneRedLineWhatIsToBeDoneAboutShardsThatWaitForAnOperator) {
  v1::StatusResponse status = Example();
  status.mutable_cluster();
  EXPECT_THAT(StatusText(status), Not(HasSubstr("NOT SERVED")));
  const std::string line =
      "4 of 8 shards are lost and not served: ps 1 was restarted without their data. Start it with its former folder; "
      "or "
      "`psctl promote 0` makes ps 0 their owner; or `psctl accept-loss 1` goes on";
  status.mutable_cluster()->add_unserved(line);
  EXPECT_THAT(StatusText(status), HasSubstr("\nNOT SERVED: " + line + "\n"));
  EXPECT_THAT(StatusText(status, Painter(true)), HasSubstr("\n\x1b[31mNOT SERVED: " + line + "\x1b[0m\n"));
}

TEST(StatusText, CountsServersThatAreOutNotAndNamesThePlacesThatAreKept) {
  v1::StatusResponse status = Example();
  v1::ClusterStatus* const cluster = status.mutable_cluster();
  cluster->set_name("c");
  cluster->add_servers()->set_alive(true);
  cluster->add_servers()->set_out(true);
  cluster->set_servers_expected(1);
  EXPECT_THAT(StatusText(status), HasSubstr("cluster c: 1 of 1 servers have joined"));
  EXPECT_THAT(StatusText(status), Not(HasSubstr("more ps")));
  cluster->set_places_kept(1);
  EXPECT_THAT(StatusText(status), HasSubstr("\n1 place is kept for more ps: psctl add INDEX, and start it\n"));
  cluster->mutable_servers(1)->set_out(false);
  EXPECT_THAT(StatusText(status), HasSubstr("cluster c: 2 of 1 servers have joined"));
}

TEST(StatusText, NamesZonesWhereThereAreAnyAndThoseThatHaveBothCopies) {
  v1::StatusResponse status = Example();
  v1::MemberStatus* const server = status.mutable_cluster()->add_servers();
  EXPECT_THAT(StatusText(status), Not(HasSubstr("zone")));
  server->set_zone("rack-b");
  status.mutable_cluster()->add_one_zone("zone rack-b has both copies of 3 shards: no ps of another zone is there");
  EXPECT_THAT(StatusText(status), HasSubstr("\nzone rack-b has both copies of 3 shards"));
  EXPECT_THAT(StatusText(status), ContainsRegex("lag +zone\n"));
  EXPECT_THAT(StatusText(status), ContainsRegex(" rack-b\n"));
}

TEST(StatusText, SaysWhatTheCoordinatorMovesOfItselfAndWhatIsHot) {
  v1::StatusResponse status = Example();
  v1::ClusterStatus* const cluster = status.mutable_cluster();
  EXPECT_THAT(StatusText(status), Not(HasSubstr("rebalance")));
  cluster->set_rebalance("moves shards: ps 0 has 1.84 times the mean traffic, ps 2 0.10");
  cluster->add_slow_shards()->set_text("shard 9 on ps 0 takes 25 % of the time that pushes take");
  cluster->add_hot_shards()->set_text("shard 17 on ps 1 takes 41 % of the bytes pushed");
  v1::HotKey* const key = status.add_hot_keys();
  key->set_table("emb");
  key->set_key(4711);
  key->set_shard(17);
  key->set_per_second(1200);
  key->set_share(0.38f);
  const std::string text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("\nrebalance: auto, moves shards: ps 0 has 1.84 times the mean traffic, ps 2 0.10\n"));
  EXPECT_THAT(text, HasSubstr("\nslow: shard 9 on ps 0 takes 25 % of the time that pushes take\n"
                              "hot: shard 17 on ps 1 takes 41 % of the bytes pushed\n"));
  EXPECT_THAT(text, HasSubstr("4711"));
  EXPECT_THAT(text, HasSubstr("38 %"));
}

TEST(StatusText, ShowsSessionsSubscribersExecutorsAndWaits) {
  v1::StatusResponse status = Example();
  status.add_sessions()->set_worker_incarnation(0xabcd);
  status.add_subscribers()->set_peer("ipv4:127.0.0.1:555");
  status.add_executors()->set_queue_length(17);
  v1::WaitStatus* wait = status.add_waits();
  wait->set_who("worker 1");
  wait->set_what("clock 7 of worker 0");
  const std::string text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("abcd"));
  EXPECT_THAT(text, HasSubstr("observer"));
  EXPECT_THAT(text, HasSubstr("ipv4:127.0.0.1:555"));
  EXPECT_THAT(text, HasSubstr("17"));
  EXPECT_THAT(text, HasSubstr("clock 7 of worker 0"));
}

}  // namespace
}  // namespace lodestone::psctl
