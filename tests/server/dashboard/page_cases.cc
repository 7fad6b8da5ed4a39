#include "tests/server/dashboard/page_cases.h"

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/limits.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kSeed = 7;
constexpr uint64_t kMiB = 1 << 20;

// Small numbers around `mean`.
class Noise {
 public:
  double Around(double mean, double spread) {
    return mean * (1 + spread * std::uniform_real_distribution<double>(-1, 1)(engine_));
  }

 private:
  std::mt19937 engine_{kSeed};
};

void FillSelf(v1::StatusResponse* status, uint32_t index, uint32_t shards_owned, uint32_t shards) {
  v1::ServerStatus* const server = status->mutable_server();
  server->set_index(index);
  server->set_address(absl::StrCat("10.0.0.", index + 1, ":7000"));
  server->set_incarnation(0x1122334455667788 + index);
  server->set_version("0.1.0");
  server->set_uptime_seconds(754.3);
  server->set_resident_bytes(276 * kMiB);
  server->set_table_bytes(181 * kMiB);
  server->set_shards_owned(shards_owned);
  server->set_shards_total(shards);
  server->set_pushes(404'912);
  server->set_pulls(405'402);
  server->set_pushes_per_second(626);
  server->set_pulls_per_second(625);
  server->set_push_bytes(19'270 * kMiB);
  server->set_pull_bytes(6'640 * kMiB);
  server->set_broadcast_bytes(7'470 * kMiB);
  server->set_http(absl::StrCat("10.0.0.", index + 1, ":7080"));
  status->set_coordinator("10.0.0.1:7000");
  for (int i = 0; i < 4; ++i) {
    v1::ExecutorStatus* const executor = status->add_executors();
    executor->set_queue_length(i % 2);
    executor->set_executed(101'228 + i);
    executor->set_queue_length_max(12);
  }
}

v1::MemberStatus* AddServer(v1::StatusResponse* status, uint32_t index, uint32_t shards_owned, Noise* noise) {
  v1::MemberStatus* const member = status->mutable_cluster()->add_servers();
  member->set_index(index);
  member->set_incarnation(1000 + index);
  member->set_peer(absl::StrCat("10.0.", index / 250, ".", index % 250 + 1, ":7000"));
  member->set_last_contact_seconds(noise->Around(0.5, 0.9));
  member->set_alive(true);
  member->set_shards_owned(shards_owned);
  v1::ServerProgress* const progress = member->mutable_server();
  progress->set_resident_bytes(static_cast<uint64_t>(noise->Around(276.0 * kMiB, 0.1)));
  progress->set_table_bytes(static_cast<uint64_t>(noise->Around(181.0 * kMiB, 0.1)));
  progress->set_pushes_per_second(noise->Around(626, 0.05));
  progress->set_pulls_per_second(noise->Around(625, 0.05));
  progress->set_http(absl::StrCat("10.0.", index / 250, ".", index % 250 + 1, ":7080"));
  progress->set_rows(static_cast<uint64_t>(noise->Around(395'800, 0.02)));
  return member;
}

v1::MemberStatus* AddWorker(v1::StatusResponse* status, uint32_t index, double share, Noise* noise) {
  constexpr uint64_t kSamples = 3'000'000;
  v1::MemberStatus* const member = status->mutable_cluster()->add_workers();
  member->set_index(index);
  member->set_incarnation(5000 + index);
  member->set_peer(absl::StrCat("node", index, " pid ", 17'013 + index));
  member->set_last_contact_seconds(noise->Around(0.5, 0.9));
  member->set_alive(true);
  member->set_samples_per_second(noise->Around(78'000, 0.04));
  v1::WorkerProgress* const progress = member->mutable_progress();
  progress->set_phase(v1::PHASE_TRAINING);
  progress->set_samples(static_cast<uint64_t>(noise->Around(share, 0.02) * kSamples));
  progress->set_samples_total(kSamples);
  progress->set_clock(progress->samples() / 256);
  progress->set_loss(static_cast<float>(noise->Around(0.3878, 0.01)));
  progress->set_staleness_pushes(static_cast<float>(noise->Around(1.9, 0.2)));
  return member;
}

void AddTable(v1::StatusResponse* status, const std::string& name, bool embedding, Noise* noise) {
  v1::TableStatus* const table = status->add_tables();
  table->set_name(name);
  table->set_id(status->tables_size());
  table->set_shape(embedding ? "embedding dim 8" : "dense [68, 64]");
  table->set_optimizer(embedding ? "adagrad" : "adam");
  if (embedding) {
    table->set_rows(static_cast<uint64_t>(noise->Around(395'800, 0.01)));
    table->set_bytes_max(256 * kMiB);
  } else {
    table->set_blocks(1);
  }
  table->set_bytes(embedding ? table->rows() * 117 : 49'254);
  table->set_updates(embedding ? 12'956'800 : 404'912);
  table->set_version_max(404'912);
  if (embedding) table->set_not_admitted(1'204);
}

void AddEvent(PageCase* page, uint64_t time_ms, const std::string& kind, const std::string& who,
              const std::string& text) {
  v1::Event* const event = page->events.add_events();
  event->set_id(page->events.events_size());
  event->set_time_ms(time_ms);
  event->set_kind(kind);
  event->set_who(who);
  event->set_text(text);
  page->events.set_incarnation(42);
}

// A run that began `seconds` ago; its loss falls as losses do.
void AddHistory(PageCase* page, uint64_t now_ms, int seconds, double samples_per_second, uint32_t workers,
                Noise* noise) {
  const int points = std::min<int>(seconds, limits::kHistoryPointsMax);
  double samples = 0;
  for (int i = 1; i <= points; ++i) {
    const double at = 1.0 * seconds * i / points;
    v1::HistoryPoint* const point = page->history.add_points();
    point->set_time_ms(now_ms - static_cast<uint64_t>(1000 * (seconds - at)));
    const bool loads = i <= 1 + points / 50;
    point->set_workers(workers);
    if (loads) continue;
    point->set_samples_per_second(noise->Around(samples_per_second, 0.04));
    samples += point->samples_per_second() * seconds / points;
    point->set_samples(static_cast<uint64_t>(samples));
    point->set_loss(static_cast<float>(noise->Around(0.36 + 0.35 / std::sqrt(1 + 60.0 * i / points), 0.012)));
    point->set_staleness_pushes(static_cast<float>(noise->Around(1.9, 0.2)));
    point->set_metric_name("auc");
    point->set_metric(noise->Around(0.87 - 0.3 / std::sqrt(1 + 60.0 * i / points), 0.004));
    point->set_pushes_per_second(noise->Around(samples_per_second / 128, 0.04));
  }
}

PageCase Training(uint64_t now_ms) {
  PageCase page;
  Noise noise;
  FillSelf(&page.status, 0, 32, 64);
  v1::ClusterStatus* const cluster = page.status.mutable_cluster();
  cluster->set_name("clicks");
  cluster->set_route_epoch(1);
  cluster->set_servers_expected(2);
  cluster->set_replicas(1);
  for (uint32_t i = 0; i < 2; ++i) AddServer(&page.status, i, 32, &noise);
  for (uint32_t i = 0; i < 2; ++i) AddWorker(&page.status, i, 0.57, &noise);
  for (const char* const name : {"embedding", "linear"}) AddTable(&page.status, name, true, &noise);
  for (const char* const name : {"bias", "mlp/0/bias", "mlp/0/weight", "mlp/1/weight"}) {
    AddTable(&page.status, name, false, &noise);
  }
  for (uint32_t i = 0; i < 2; ++i) {
    v1::SessionStatus* const session = page.status.add_sessions();
    session->set_worker_incarnation(5000 + i);
    session->set_clock(1'828 - i);
    session->set_last_contact_seconds(0.1);
    session->set_pushes(1'828 - i);
    session->set_sequence(1'830);
  }
  v1::SubscriberStatus* const subscriber = page.status.add_subscribers();
  subscriber->set_worker_incarnation(5000);
  subscriber->set_peer("ipv4:10.0.0.9:51234");
  subscriber->set_deltas(914);
  subscriber->set_bytes(74 * kMiB);
  AddHistory(&page, now_ms, 22, 155'000, 2, &noise);
  AddEvent(&page, now_ms - 24'000, "joined", "ps 0", "at 10.0.0.1:7000");
  AddEvent(&page, now_ms - 23'500, "joined", "ps 1", "at 10.0.0.2:7000");
  AddEvent(&page, now_ms - 22'000, "joined", "worker 0", "node0 pid 17013");
  AddEvent(&page, now_ms - 21'900, "joined", "worker 1", "node1 pid 17014");
  AddEvent(&page, now_ms - 4'000, "checkpointed", "ps 0", "20261121T140309-3f2a: 181.0 MiB in 0.8 s");
  return page;
}

PageCase Empty() {
  PageCase page;
  Noise noise;
  FillSelf(&page.status, 0, 0, 64);
  v1::ServerStatus* const server = page.status.mutable_server();
  for (const char* const field : {"pushes", "pulls", "pushes_per_second", "pulls_per_second", "push_bytes",
                                  "pull_bytes", "broadcast_bytes", "table_bytes"}) {
    server->GetReflection()->ClearField(server, server->GetDescriptor()->FindFieldByName(field));
  }
  server->set_uptime_seconds(1.4);
  v1::ClusterStatus* const cluster = page.status.mutable_cluster();
  cluster->set_name("default");
  cluster->set_servers_expected(2);
  cluster->set_replicas(1);
  v1::MemberStatus* const member = AddServer(&page.status, 0, 0, &noise);
  const std::string http = member->server().http();
  member->mutable_server()->Clear();
  member->mutable_server()->set_http(http);
  v1::WaitStatus* const wait = page.status.add_waits();
  wait->set_who("ps 0");
  wait->set_what("1 of 2 servers have joined; missing: ps 1");
  wait->set_seconds(1.2);
  return page;
}

PageCase Finished(uint64_t now_ms) {
  PageCase page = Training(now_ms);
  for (v1::MemberStatus& worker : *page.status.mutable_cluster()->mutable_workers()) {
    worker.set_alive(false);
    worker.set_left(true);
    worker.set_samples_per_second(0);
    worker.mutable_progress()->set_phase(v1::PHASE_FINISHED);
    worker.mutable_progress()->set_samples(worker.progress().samples_total());
  }
  for (const char* const who : {"worker 0", "worker 1"}) AddEvent(&page, now_ms, "left", who, "finished");
  return page;
}

PageCase Big(uint64_t now_ms) {
  PageCase page;
  Noise noise;
  FillSelf(&page.status, 0, 41, 4096);
  v1::ClusterStatus* const cluster = page.status.mutable_cluster();
  cluster->set_name("ranking-production");
  cluster->set_route_epoch(218);
  cluster->set_servers_expected(100);
  cluster->set_replicas(2);
  cluster->set_shards_in_sync(4096);
  for (uint32_t i = 0; i < 100; ++i) {
    v1::MemberStatus* const member = AddServer(&page.status, i, 40 + (i < 96), &noise);
    member->set_shards_following(40 + (i >= 4));
    member->mutable_server()->set_lag_records(i % 7);
  }
  for (uint32_t i = 0; i < 500; ++i) AddWorker(&page.status, i, 0.31, &noise);
  for (int i = 0; i < 200; ++i) AddTable(&page.status, absl::StrFormat("features/%03d/embedding", i), i % 3, &noise);
  v1::ReplicationStatus* const replication = page.status.mutable_replication();
  replication->set_shards_in_sync(41);
  replication->set_shards_following(40);
  replication->set_shards_followed(40);
  replication->set_lease_seconds(9.2);
  for (uint32_t i = 1; i < 42; ++i) {
    v1::FollowerStatus* const follower = replication->add_followers();
    follower->set_server(i);
    follower->set_shards(1);
    follower->set_shards_in_sync(1);
    follower->set_lag_records(i % 5);
    follower->set_lag_bytes(i % 5 * 40'000);
    follower->set_bytes(i * 9 * kMiB);
  }
  AddHistory(&page, now_ms, 6 * 3600, 39'000'000, 500, &noise);
  for (uint32_t i = 0; i < limits::kEventsMax; ++i) {
    AddEvent(&page, now_ms - 20'000 * (limits::kEventsMax - i), i % 3 == 0 ? "checkpointed" : "joined",
             absl::StrCat(i % 3 == 0 ? "ps " : "worker ", i % 100), "node7 pid 17013");
  }
  return page;
}

void BreakServer(v1::StatusResponse* status) {
  v1::ServerStatus* const server = status->mutable_server();
  server->set_table_bytes_max(190 * kMiB);
  server->set_pushes_refused(12);
  server->set_last_refusal("worker 1, table mlp/0/weight: 3 values are not finite, the first at 17");
  server->set_security_warning("open to any caller that can connect");
  v1::StorageStatus* const storage = status->mutable_storage();
  storage->set_dir("/var/lib/lodestone/ps-0");
  storage->set_durability("process");
  storage->set_log_bytes(812 * kMiB);
  storage->set_log_records(404'000);
  storage->set_log_commits(201'000);
  storage->set_log_error("/var/lib/lodestone/ps-0/log-1/3.log: writing: No space left on device");
  storage->set_checkpoint("20261121T140309-3f2a");
  storage->set_checkpoint_age_seconds(1'312);
  storage->set_checkpoint_seconds(0.8);
  storage->set_checkpoint_bytes(181 * kMiB);
  storage->set_checkpoint_error("/var/lib/lodestone/ps-0/checkpoints: making a folder: No space left on device");
  storage->add_checkpoint_damage(
      "/var/lib/lodestone/ps-0/checkpoints/before-tuning/ps-0.shard-00003: its content is not what was written: "
      "checksum "
      "17 instead of 4");
  storage->set_replayed_records(1'204);
  storage->set_recovery_seconds(1.7);
  v1::ReplicationStatus* const replication = status->mutable_replication();
  replication->set_shards_in_sync(20);
  replication->set_shards_alone(12);
  replication->set_shards_following(20);
  replication->set_shards_followed(11);
  replication->set_lease_seconds(-2.1);
  v1::IdentityStatus* const identity = status->add_identities();
  identity->set_name("batch-7");
  identity->set_role("worker");
  identity->set_calls(40'112);
  identity->set_denied(9);
  identity->set_throttled(77);
  identity->set_push_bytes(3 * kMiB);
}

PageCase Trouble(uint64_t now_ms) {
  PageCase page = Training(now_ms);
  BreakServer(&page.status);
  v1::ClusterStatus* const cluster = page.status.mutable_cluster();
  cluster->set_replicas(2);
  cluster->set_servers_expected(3);
  cluster->set_route_epoch(7);
  cluster->set_shards_in_sync(20);
  for (v1::MemberStatus& server : *cluster->mutable_servers()) server.set_shards_following(20);
  v1::MemberStatus* const dead = cluster->mutable_servers(1);
  dead->set_alive(false);
  dead->set_last_contact_seconds(42.4);
  dead->mutable_server()->set_pushes_refused(3);
  dead->mutable_server()->set_lag_records(1'204);
  v1::MemberStatus* const out = cluster->add_servers();  // Nobody misses it.
  out->set_index(2);
  out->set_draining(true);
  out->set_out(true);
  v1::MemberStatus* const lost = cluster->mutable_workers(1);
  lost->set_alive(false);
  lost->set_last_contact_seconds(88.1);
  lost->set_samples_per_second(0);
  v1::WorkerProgress* const waits = cluster->mutable_workers(0)->mutable_progress();
  waits->set_waiting_for("ps 1 at 10.0.0.2:7000 to acknowledge pushes: connection refused");
  waits->set_loss(std::nanf(""));
  v1::WaitStatus* const wait = page.status.add_waits();
  wait->set_who("ps 0");
  wait->set_what("ps 1 to confirm updates that it follows");
  wait->set_seconds(42.1);
  v1::WaitChain* const chain = cluster->add_why();
  chain->set_text("worker 0 waits for ps 0 to acknowledge push 1093, which waits for ps 1");
  chain->add_links()->mutable_waiter()->set_kind(v1::WaitTarget::WORKER);
  chain->add_likewise("worker 3");
  v1::SlowMember* const slow = cluster->add_slow();
  slow->set_role(v1::ROLE_WORKER);
  slow->set_text("worker 0 trains 0.2 of the median");
  cluster->add_slow_shards()->set_text("shard 9 on ps 0 takes 25 % of the time that pushes take");
  cluster->add_hot_shards()->set_text("shard 17 on ps 1 takes 41 % of the bytes pushed");
  AddEvent(&page, now_ms - 1'500, "died", "ps 1", "last heard of 10.0 s before");
  AddEvent(&page, now_ms - 1'400, "refused", "worker 1", "3 values are not finite");
  AddEvent(&page, now_ms - 900, "disk", "ps 0", "No space left on device");
  return page;
}

PageCase Other(uint64_t now_ms) {
  PageCase page = Training(now_ms);
  page.status.clear_cluster();
  page.history.Clear();
  page.events.Clear();
  page.status.mutable_server()->set_index(1);
  page.status.mutable_server()->set_address("10.0.0.2:7000");
  AddEvent(&page, now_ms - 4'000, "checkpointed", "ps 1", "20261121T140309-3f2a: 181.0 MiB in 0.8 s");
  return page;
}

PageCase Names(uint64_t now_ms) {
  PageCase page = Trouble(now_ms);
  v1::StatusResponse& status = page.status;
  const std::string name = kHostileName, long_name = name + std::string(200, 'x');
  status.mutable_cluster()->set_name(name);
  status.mutable_server()->set_address(name);
  status.mutable_server()->set_last_refusal(name);
  status.mutable_server()->set_security_warning(long_name);
  for (v1::MemberStatus& server : *status.mutable_cluster()->mutable_servers()) {
    server.set_peer(long_name);
    server.mutable_server()->set_http("javascript:window.hacked=1//:80");
  }
  for (v1::MemberStatus& worker : *status.mutable_cluster()->mutable_workers()) {
    worker.set_peer(name);
    worker.mutable_progress()->set_waiting_for(long_name);
  }
  for (v1::TableStatus& table : *status.mutable_tables()) table.set_name(absl::StrCat(table.name(), long_name));
  for (v1::WaitStatus& wait : *status.mutable_waits()) wait.set_what(long_name);
  for (v1::WaitChain& chain : *status.mutable_cluster()->mutable_why()) chain.set_text(long_name);
  for (v1::IdentityStatus& identity : *status.mutable_identities()) identity.set_name(long_name);
  for (v1::HistoryPoint& point : *page.history.mutable_points()) {
    if (!point.metric_name().empty()) point.set_metric_name(name);
  }
  for (v1::Event& event : *page.events.mutable_events()) {
    event.set_kind(name);
    event.set_who(name);
    event.set_text(absl::StrCat(long_name, "\u202e\u0007"));
  }
  return page;
}

}  // namespace

PageCase MakePageCase(const std::string& name, uint64_t now_ms) {
  if (name == "training") return Training(now_ms);
  if (name == "empty") return Empty();
  if (name == "finished") return Finished(now_ms);
  if (name == "big") return Big(now_ms);
  if (name == "trouble") return Trouble(now_ms);
  if (name == "other") return Other(now_ms);
  if (name == "names") return Names(now_ms);
  ADD_FAILURE() << "there is no case " << name;
  return PageCase();
}

}  // namespace lodestone::server
