// A cluster of two servers that answer what an operator asks, and do nothing.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"

namespace lodestone::psctl {

// A ps that writes checkpoints and brings tables back in no time, or not at all.
class FakeAdmin final : public v1::Admin::Service {
 public:
  explicit FakeAdmin(uint32_t index) : index_(index) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    builder.RegisterService(&routes_);
    server_ = builder.BuildAndStart();
    address = absl::StrCat("127.0.0.1:", port);
  }
  ~FakeAdmin() override { server_->Shutdown(); }

  grpc::Status Status(grpc::ServerContext* context, const v1::StatusRequest*, v1::StatusResponse* response) override {
    while (stalls && !context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    *response = status;
    response->mutable_server()->set_index(index_);
    response->mutable_server()->set_address(address);
    if (cluster.servers_expected() > 0) *response->mutable_cluster() = cluster;
    response->set_coordinator(coordinator);
    if (on_status) on_status(response);
    return status_answer;
  }
  grpc::Status Events(grpc::ServerContext*, const v1::EventsRequest* request, v1::EventsResponse* response) override {
    MutexLock lock(&mu_);
    response->set_incarnation(events_.incarnation());
    for (const v1::Event& event : events_.events()) {
      if (event.id() > request->after_id()) *response->add_events() = event;
    }
    return grpc::Status::OK;
  }
  grpc::Status Checkpoint(grpc::ServerContext*, const v1::CheckpointRequest* request,
                          v1::CheckpointResponse* response) override {
    MutexLock lock(&mu_);
    names_.push_back(absl::StrCat(request->name(), request->removes().empty() ? "" : ", not ", request->removes()));
    response->set_path(absl::StrCat("/data/", request->name()));
    response->set_shards(index_ + 10);
    if (on_checkpoint) on_checkpoint(response);
    return answer;
  }
  grpc::Status Rollback(grpc::ServerContext*, const v1::RollbackRequest* request,
                        v1::RollbackResponse* response) override {
    MutexLock lock(&mu_);
    names_.push_back(request->ShortDebugString());
    for (uint32_t i = 0; i < shards_back; ++i) {
      v1::RollbackResponse::ShardRollback* const shard = response->add_shards();
      shard->set_shard(index_ + 2 * i);
      shard->set_version_before(100 + i);
      shard->set_version_after(101 + i);
      shard->set_version_restored(7);
    }
    return answer;
  }
  grpc::Status VerifyReplicas(grpc::ServerContext*, const v1::VerifyReplicasRequest*,
                              v1::VerifyReplicasResponse* response) override {
    *response = replicas;
    return answer;
  }
  grpc::Status Promote(grpc::ServerContext*, const v1::PromoteRequest* request,
                       v1::PromoteResponse* response) override {
    MutexLock lock(&mu_);
    names_.push_back(absl::StrCat("promote ", request->server()));
    response->set_shards(request->server() + 10);
    response->set_unserved(3);
    return answer;
  }
  grpc::Status AcceptLoss(grpc::ServerContext*, const v1::AcceptLossRequest* request,
                          v1::AcceptLossResponse* response) override {
    MutexLock lock(&mu_);
    names_.push_back(absl::StrCat("accept-loss ", request->server()));
    response->set_shards(request->server() + 20);
    return answer;
  }
  grpc::Status Move(grpc::ServerContext*, const v1::MoveRequest* request, v1::MoveResponse* response) override {
    MutexLock lock(&mu_);
    names_.push_back(request->ShortDebugString());
    response->set_cancelled(request->cancel() ? 5 : 0);
    response->set_planned(planned);
    return answer;
  }
  grpc::Status Drain(grpc::ServerContext*, const v1::DrainRequest* request, v1::DrainResponse* response) override {
    MutexLock lock(&mu_);
    names_.push_back(request->ShortDebugString());
    response->set_shards_owned(9);
    return answer;
  }
  grpc::Status SetTable(grpc::ServerContext*, const v1::SetTableRequest* request,
                        v1::SetTableResponse* response) override {
    MutexLock lock(&mu_);
    names_.push_back(request->ShortDebugString());
    *response->mutable_settings() = settings;
    if (!request->fields().empty() && refusals > 0) {
      --refusals;
      return {grpc::StatusCode::UNAVAILABLE, "shard 3 is just given to another ps"};
    }
    v1::SetTableRequest wanted;
    wanted.set_table(request->table());
    *wanted.mutable_fields() = request->fields();
    *wanted.mutable_settings() = request->settings();
    wanted.mutable_settings()->clear_revision();
    response->set_changed(!request->fields().empty() && has_.insert(wanted.SerializeAsString()).second);
    return answer;
  }
  grpc::Status PauseTraining(grpc::ServerContext*, const v1::PauseTrainingRequest* request,
                             v1::PauseTrainingResponse* response) override {
    MutexLock lock(&mu_);
    const std::string name = absl::StrCat("pause ", request->end() ? "end" : "");
    if (names_.empty() || names_.back() != name) names_.push_back(name);  // It is asked again and again.
    response->set_ends_after_ms(10'000);
    response->set_at_rest(rests);
    if (rests) response->set_orders(3);
    if (!rests) response->add_waiting_for("worker 3 ends its steps");
    return grpc::Status::OK;
  }
  // What was asked of it, but for its status.
  std::vector<std::string> names() {
    MutexLock lock(&mu_);
    return names_;
  }

  // What Events tells from now on: events 1, 2, … of a log, of `kinds`, with `who` in each.
  void SetEvents(uint64_t incarnation, const std::vector<std::string>& kinds, const std::string& who = "ps 1") {
    MutexLock lock(&mu_);
    events_.Clear();
    events_.set_incarnation(incarnation);
    for (const std::string& kind : kinds) {
      v1::Event* const event = events_.add_events();
      event->set_id(events_.events_size());
      event->set_time_ms(1'700'000'000'000 + event->id());
      event->set_kind(kind);
      event->set_who(who);
      event->set_text(absl::StrCat("text ", event->id()));
    }
  }

  std::string address;
  v1::StatusResponse status;                           // But for what stands below.
  std::function<void(v1::StatusResponse*)> on_status;  // Changes each answer.
  grpc::Status status_answer;
  std::atomic<bool> stalls{false};  // Its status is not told until the caller gives up.
  v1::ClusterStatus cluster;
  std::string coordinator;
  std::function<void(v1::RouteResponse*)> on_route;  // Fills in who owns which shard.
  v1::TableSpec settings;                            // What SetTable says of every table.
  std::atomic<int> refusals = 0;                     // Of the next requests that set something.
  v1::VerifyReplicasResponse replicas;
  std::atomic<bool> rests{true};  // Whether workers pause.
  grpc::Status answer;
  std::function<void(v1::CheckpointResponse*)> on_checkpoint;  // Changes each answer; called under a lock.
  uint32_t shards_back = 3;
  uint32_t planned = 0;  // Shards, by Move.

 private:
  // The coordinator, asked for its shard map.
  class Routes final : public v1::Coordinator::Service {
   public:
    explicit Routes(FakeAdmin* admin) : admin_(admin) {}
    grpc::Status Route(grpc::ServerContext*, const v1::RouteRequest* request, v1::RouteResponse* response) override {
      EXPECT_EQ(request->role(), v1::ROLE_WORKER);
      if (admin_->on_route) admin_->on_route(response);
      return grpc::Status::OK;
    }

   private:
    FakeAdmin* const admin_;
  };

  const uint32_t index_;
  Routes routes_{this};
  Mutex mu_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> has_ ABSL_GUARDED_BY(mu_);  // What was set.
  v1::EventsResponse events_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
};

class TwoServersTest : public ::testing::Test {
 protected:
  TwoServersTest() {
    zero_.cluster.set_name("test");
    zero_.cluster.set_servers_expected(2);
    zero_.cluster.set_route_epoch(1);
    for (const FakeAdmin* each : {&one_, &zero_}) {
      v1::MemberStatus* server = zero_.cluster.add_servers();
      server->set_index(each == &one_ ? 1 : 0);
      server->set_peer(each->address);
      server->set_alive(true);
    }
    one_.coordinator = zero_.address;
  }
  // Where nothing listens.
  static std::string Nowhere() {
    FakeAdmin admin(0);
    return admin.address;
  }
  FakeAdmin zero_{0};
  FakeAdmin one_{1};
};

}  // namespace lodestone::psctl
