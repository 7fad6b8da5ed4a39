#include "worker/membership.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/time_source.h"
#include "common/wire.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "tests/worker/fake_server.h"

namespace lodestone {
namespace {

// The coordinator's own bookkeeping behind a server that treats Joins as it is told.
class Coordinator {
 public:
  // What is done to Join number `call`, from 1.
  enum class Fault { kNone, kRefuse, kDropReply };
  using Faults = std::function<Fault(int call)>;

  Coordinator(uint32_t workers, Faults faults) : faults_(std::move(faults)), members_(OptionsWith(workers, &time_)) {
    server_ = std::make_unique<FakeServer>([this](std::shared_ptr<FakeCall> call) { Handle(call.get()); });
    v1::JoinRequest ps;
    ps.set_role(v1::ROLE_SERVER);
    ps.set_address(server_->address());
    ps.set_cluster("test");
    ps.set_shards(4);
    MutexLock lock(&mu_);
    EXPECT_TRUE(members_.Join(ps).ok());
  }

  v1::Config config() const {
    v1::Config config;
    config.mutable_cluster()->set_name("test");
    config.mutable_cluster()->set_shards(4);
    config.mutable_coordinator()->set_address(server_->address());
    config.mutable_coordinator()->set_join_timeout_ms(600'000);
    config.mutable_worker()->set_call_timeout_ms(60'000);
    return config;
  }
  v1::ClusterStatus status() {
    MutexLock lock(&mu_);
    return members_.Status();
  }
  std::vector<v1::JoinRequest> joins() {
    MutexLock lock(&mu_);
    return joins_;
  }

 private:
  static Membership::Options OptionsWith(uint32_t workers, const TimeSource* time) {
    Membership::Options options;
    options.cluster = "test";
    options.workers = workers;
    options.shards = 4;
    options.lease_ms = 600'000;
    options.time = time;
    return options;
  }

  template <typename Request>
  static Request Parse(const FakeCall& call) {
    Request request;
    Payload payload;
    EXPECT_TRUE(ParseMessage(call.request(), &request, &payload).ok());
    return request;
  }

  template <typename Response>
  static void Answer(FakeCall* call, const absl::StatusOr<Response>& response) {
    if (response.ok()) return call->Reply(*response);
    call->Finish(grpc::Status(static_cast<grpc::StatusCode>(response.status().code()),
                              std::string(response.status().message())));
  }

  void Handle(FakeCall* call) {
    MutexLock lock(&mu_);
    if (call->method() == "Join") return Join(call);
    if (call->method() == "Route") return Answer(call, members_.Route());
    Answer(call, members_.Heartbeat(Parse<v1::HeartbeatRequest>(*call)));
  }

  void Join(FakeCall* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    joins_.push_back(Parse<v1::JoinRequest>(*call));
    const Fault fault = faults_ ? faults_(static_cast<int>(joins_.size())) : Fault::kNone;
    if (fault == Fault::kRefuse) return call->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "not yet"));
    const auto joined = members_.Join(joins_.back());
    if (fault == Fault::kDropReply) return call->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost"));
    Answer(call, joined);
  }

  const Faults faults_;
  const ManualTime time_;  // Stands still: no lease ends.
  Mutex mu_;
  Membership members_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::JoinRequest> joins_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<FakeServer> server_;
};

// The answer to a Join was lost once, and the worker then took a second place, in which another worker belonged.
TEST(WorkerMembership, AJoinWhoseAnswerWasLostTakesOnePlace) {
  for (const bool has_index : {false, true}) {
    Coordinator coordinator(
        2, [](int call) { return call <= 2 ? Coordinator::Fault::kDropReply : Coordinator::Fault::kNone; });
    v1::Config config = coordinator.config();
    if (has_index) config.mutable_worker()->set_index(1);
    const auto worker = WorkerMembership::Join(config, {});
    ASSERT_TRUE(worker.ok()) << worker.status();
    EXPECT_EQ((*worker)->index(), has_index ? 1 : 0);
    const v1::ClusterStatus status = coordinator.status();
    ASSERT_EQ(status.workers_size(), 1);
    EXPECT_EQ(status.workers(0).incarnation(), (*worker)->incarnation());
    EXPECT_EQ(coordinator.joins().size(), 3u);
  }
}

TEST(WorkerMembership, WorkersOfOneProcessAreToldApart) {
  Coordinator coordinator(2, nullptr);
  const auto first = WorkerMembership::Join(coordinator.config(), {});
  const auto second = WorkerMembership::Join(coordinator.config(), {});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE((*first)->index(), (*second)->index());
  const auto joins = coordinator.joins();
  EXPECT_NE(joins[0].token(), joins[1].token());
  EXPECT_NE(joins[0].token() * joins[1].token(), 0u);
}

TEST(WorkerMembership, DoesNotHurryACoordinatorThatIsNotReady) {
  constexpr int kRefusals = 6;
  Coordinator coordinator(
      1, [](int call) { return call <= kRefusals ? Coordinator::Fault::kRefuse : Coordinator::Fault::kNone; });
  const auto start = std::chrono::steady_clock::now();
  const auto worker = WorkerMembership::Join(coordinator.config(), {});
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(coordinator.joins().size(), kRefusals + 1u);
  // At least the halves of 40, 80, 160, 320, 500, 500 ms (common/retry.h).
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20 + 40 + 80 + 160 + 320 + 500));
}

}  // namespace
}  // namespace lodestone
