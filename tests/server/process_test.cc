#include "server/process.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/types.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/parameter_server.grpc.pb.h"
#include "tests/common/rpc/message_limit.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/whole_process.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

// "joined ps 1" of each event that `process` tells of.
std::vector<std::string> EventsOf(const ServerProcess& process) {
  grpc::ClientContext context;
  v1::EventsResponse response;
  const auto stub = v1::Admin::NewStub(MakeChannel(process.address(), kMessageBytesMax));
  const grpc::Status status = stub->Events(&context, v1::EventsRequest(), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  std::vector<std::string> events;
  for (const v1::Event& event : response.events()) events.push_back(event.kind() + " " + event.who());
  return events;
}

// Waits until `process` tells of `event`; how often it does.
int AwaitEvent(const ServerProcess& process, const std::string& event) {
  for (;;) {
    const std::vector<std::string> events = EventsOf(process);
    const auto count = std::count(events.begin(), events.end(), event);
    if (count > 0) return static_cast<int>(count);
    std::this_thread::yield();
  }
}

// Waits until the status of `process` satisfies `condition`.
template <typename Condition>
v1::StatusResponse AwaitStatus(const ServerProcess& process, Condition condition) {
  for (;;) {
    v1::StatusResponse status = StatusOf(process);
    if (condition(status)) return status;
    std::this_thread::yield();
  }
}

// A folder of the test's own.
std::string Folder() {
  std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/process_XXXXXX";
  EXPECT_NE(mkdtemp(path.data()), nullptr);
  return path;
}

std::string Content(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}
void SetContent(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

// A worker of which there are only its calls to the coordinator.
class BareWorker {
 public:
  explicit BareWorker(const std::string& coordinator)
      : stub_(v1::Coordinator::NewStub(MakeChannel(coordinator, kMessageBytesMax))) {
    grpc::ClientContext context;
    v1::JoinRequest request;
    request.set_role(v1::ROLE_WORKER);
    request.set_cluster("lodestone");
    v1::JoinResponse response;
    const grpc::Status status = stub_->Join(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    incarnation_ = response.incarnation();
  }
  // Waits for a coordinator that is away.
  grpc::Status Beat(v1::HeartbeatResponse* response) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::HeartbeatRequest request;
    request.set_incarnation(incarnation_);
    return stub_->Heartbeat(&context, request, response);
  }
  v1::RouteResponse Route() {
    grpc::ClientContext context;
    v1::RouteResponse route;
    const grpc::Status status = stub_->Route(&context, v1::RouteRequest(), &route);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return route;
  }

 private:
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
  Incarnation incarnation_ = 0;
};

enum class Health { kUnknown, kServing, kNotServing };

// Asks grpc.health.v1.Health/Check for `service`.
Health HealthOf(const ServerProcess& process, const std::string& service) {
  std::string request;
  if (!service.empty()) request = std::string("\x0a") + static_cast<char>(service.size()) + service;
  std::string response;
  const grpc::Status status =
      RawCall(MakeChannel(process.address(), kMessageBytesMax), "/grpc.health.v1.Health/Check", request, &response);
  if (!status.ok()) return Health::kUnknown;
  if (response == "\x08\x01") return Health::kServing;
  return response == "\x08\x02" ? Health::kNotServing : Health::kUnknown;
}

TEST(ServerProcess, TwoServersFormAClusterAndShareTheShards) {
  const auto ps0 = StartOrFail(ConfigOf(2, 0));
  ASSERT_NE(ps0, nullptr);
  const auto ps1 = StartOrFail(ConfigOf(2, 1, ps0->address()));
  ASSERT_NE(ps1, nullptr);
  ASSERT_TRUE(ps0->WaitUntilReady().ok());
  ASSERT_TRUE(ps1->WaitUntilReady().ok());

  grpc::ClientContext context;
  v1::RouteResponse route;
  const auto coordinator = v1::Coordinator::NewStub(MakeChannel(ps0->address(), kMessageBytesMax));
  ASSERT_TRUE(coordinator->Route(&context, v1::RouteRequest(), &route).ok());
  EXPECT_EQ(route.epoch(), 1);
  ASSERT_EQ(route.servers_size(), 2);
  EXPECT_EQ(route.servers(0).address(), ps0->address());
  EXPECT_EQ(route.servers(1).address(), ps1->address());

  const v1::StatusResponse status0 = StatusOf(*ps0);
  const v1::StatusResponse status1 = StatusOf(*ps1);
  EXPECT_EQ(status0.server().shards_owned(), 4);
  EXPECT_EQ(status1.server().shards_owned(), 4);
  EXPECT_EQ(status0.server().shards_total(), 8);
  EXPECT_EQ(status1.server().index(), 1);
  EXPECT_EQ(status1.server().address(), ps1->address());
  EXPECT_NE(status0.server().incarnation(), 0);
  EXPECT_NE(status0.server().incarnation(), status1.server().incarnation());
  EXPECT_FALSE(status0.server().version().empty());
  EXPECT_GT(status0.server().uptime_seconds(), 0);
  EXPECT_GT(status0.server().resident_bytes(), 1 << 20);
  EXPECT_EQ(status0.executors_size(), 1);
  EXPECT_EQ(status0.cluster().servers_size(), 2);
  EXPECT_TRUE(status0.cluster().servers(1).alive());
  EXPECT_FALSE(status1.has_cluster());
  EXPECT_EQ(status0.waits_size(), 0);
  EXPECT_EQ(status1.waits_size(), 0);
}

TEST(ServerProcess, HealthAndStatusTellThatItWaitsForTheOthers) {
  const auto ps0 = StartOrFail(ConfigOf(2, 0));
  ASSERT_NE(ps0, nullptr);
  const v1::StatusResponse waiting =
      AwaitStatus(*ps0, [](const v1::StatusResponse& status) { return status.waits_size() == 1; });
  EXPECT_EQ(waiting.waits(0).who(), "ps 0");
  EXPECT_THAT(waiting.waits(0).what(), HasSubstr("waiting for 1 of 2 servers: index 1 has not joined"));
  EXPECT_EQ(HealthOf(*ps0, ""), Health::kNotServing);
  EXPECT_EQ(HealthOf(*ps0, "lodestone.v1.ParameterServer"), Health::kNotServing);
  EXPECT_EQ(HealthOf(*ps0, "lodestone.v1.Coordinator"), Health::kServing);
  EXPECT_EQ(HealthOf(*ps0, "lodestone.v1.Admin"), Health::kServing);
  EXPECT_EQ(HealthOf(*ps0, "nonsense"), Health::kUnknown);

  const auto ps1 = StartOrFail(ConfigOf(2, 1, ps0->address()));
  ASSERT_NE(ps1, nullptr);
  ASSERT_TRUE(ps0->WaitUntilReady().ok());
  ASSERT_TRUE(ps1->WaitUntilReady().ok());
  EXPECT_EQ(HealthOf(*ps0, ""), Health::kServing);
  EXPECT_EQ(HealthOf(*ps1, ""), Health::kServing);
  EXPECT_EQ(HealthOf(*ps1, "lodestone.v1.ParameterServer"), Health::kServing);
  EXPECT_EQ(HealthOf(*ps1, "lodestone.v1.Coordinator"), Health::kUnknown) << "ps 1 has none";
}

TEST(ServerProcess, ReflectionListsTheServices) {
  const auto ps0 = StartOrFail(ConfigOf(1, 0));
  ASSERT_NE(ps0, nullptr);
  std::string response;
  // ServerReflectionRequest{list_services: "*"}.
  const grpc::Status status =
      RawCall(MakeChannel(ps0->address(), kMessageBytesMax),
              "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*", &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  for (const char* service :
       {"lodestone.v1.ParameterServer", "lodestone.v1.Coordinator", "lodestone.v1.Admin", "grpc.health.v1.Health"}) {
    EXPECT_THAT(response, HasSubstr(service));
  }
}

TEST(ServerProcess, TellsOnReadyWhatWaitUntilReadyTells) {
  absl::Status told = absl::UnknownError("not called");
  {
    auto process = ServerProcess::Start(ConfigOf(1, 0), [&](absl::Status status) { told = std::move(status); });
    ASSERT_TRUE(process.ok()) << process.status();
    EXPECT_TRUE((*process)->WaitUntilReady().ok());
  }
  EXPECT_TRUE(told.ok()) << told;
}

TEST(ServerProcess, ATakenPortIsAClearError) {
  const auto first = StartOrFail(ConfigOf(1, 0));
  ASSERT_NE(first, nullptr);
  v1::Config config = ConfigOf(1, 0);
  config.mutable_server()->set_listen(first->address());
  const auto second = ServerProcess::Start(config);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(second.status().message(), "cannot listen on " + first->address() + ": Address already in use");
}

TEST(ServerProcess, ConfigurationsThatCannotWorkAreRefused) {
  v1::Config config = ConfigOf(1, 0);
  config.mutable_server()->set_listen("0.0.0.0:0");
  EXPECT_THAT(std::string(ServerProcess::Start(config).status().message()), HasSubstr("set server.advertise"));
  EXPECT_THAT(std::string(ServerProcess::Start(ConfigOf(2, 2, "x:1")).status().message()),
              HasSubstr("server.index is 2"));
  EXPECT_THAT(std::string(ServerProcess::Start(ConfigOf(2, 1)).status().message()), HasSubstr("coordinator.address"));
}

TEST(ServerProcess, AWildcardIsBoundAndTheAdvertisedAddressTold) {
  v1::Config config = ConfigOf(1, 0);
  config.mutable_server()->set_listen("0.0.0.0:0");
  config.mutable_server()->set_advertise("127.0.0.1:0");
  const auto process = StartOrFail(config);
  ASSERT_NE(process, nullptr);
  EXPECT_EQ(process->address().rfind("127.0.0.1:", 0), 0);
  EXPECT_NE(process->address(), "127.0.0.1:0");
  EXPECT_EQ(StatusOf(*process).server().address(), process->address());
}

TEST(ServerProcess, SaysSoWhenAnybodyMayConnect) {
  const auto inside = StartOrFail(ConfigOf(1, 0));
  ASSERT_NE(inside, nullptr);
  EXPECT_EQ(StatusOf(*inside).server().security_warning(), "");

  v1::Config config = ConfigOf(1, 0);
  config.mutable_server()->set_http_listen("0.0.0.0:0");
  const auto page_outside = StartOrFail(config);
  ASSERT_NE(page_outside, nullptr);
  EXPECT_THAT(StatusOf(*page_outside).server().security_warning(),
              HasSubstr("open to any caller that can connect to server.http_listen 0.0.0.0:0"));

  config.mutable_server()->clear_http_listen();
  config.mutable_server()->set_listen("0.0.0.0:0");
  config.mutable_server()->set_advertise("127.0.0.1:0");
  const auto outside = StartOrFail(config);
  ASSERT_NE(outside, nullptr);
  EXPECT_THAT(StatusOf(*outside).server().security_warning(),
              HasSubstr("open to any caller that can connect to server.listen 0.0.0.0:0"));

  config.mutable_security()->set_open(v1::SecurityConfig::REFUSE);
  EXPECT_EQ(ServerProcess::Start(config).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(ServerProcess, GivesUpWhenTheOthersDoNotCome) {
  v1::Config config = ConfigOf(2, 0);
  config.mutable_coordinator()->set_join_timeout_ms(300);
  const auto process = StartOrFail(config);
  ASSERT_NE(process, nullptr);
  const absl::Status status = process->WaitUntilReady();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("index 1 has not joined"));
}

TEST(ServerProcess, GivesUpWhenTheCoordinatorCannotBeReached) {
  v1::Config config = ConfigOf(2, 1, "127.0.0.1:1");
  config.mutable_coordinator()->set_join_timeout_ms(300);
  const auto process = StartOrFail(config);
  ASSERT_NE(process, nullptr);
  const absl::Status status = process->WaitUntilReady();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("coordinator 127.0.0.1:1"));
}

TEST(ServerProcess, AServerOfAnotherClusterOrWithAnotherNumberOfShardsIsTurnedAway) {
  const auto ps0 = StartOrFail(ConfigOf(2, 0));
  ASSERT_NE(ps0, nullptr);
  v1::Config config = ConfigOf(2, 1, ps0->address());
  config.mutable_cluster()->set_name("other");
  const auto stranger = StartOrFail(config);
  EXPECT_THAT(std::string(stranger->WaitUntilReady().message()), HasSubstr("cluster `other`"));
  config = ConfigOf(2, 1, ps0->address());
  config.mutable_cluster()->set_shards(16);
  const auto misfit = StartOrFail(config);
  EXPECT_THAT(std::string(misfit->WaitUntilReady().message()), HasSubstr("(cluster.shards)"));
}

TEST(ServerProcess, AServerWhoseIndexIsHeldByALivingOneGivesUp) {
  const auto ps0 = StartOrFail(ConfigOf(2, 0));
  ASSERT_NE(ps0, nullptr);
  const auto ps1 = StartOrFail(ConfigOf(2, 1, ps0->address()));
  ASSERT_TRUE(ps1->WaitUntilReady().ok());
  v1::Config config = ConfigOf(2, 1, ps0->address());
  config.mutable_coordinator()->set_lease_ms(300);  // How long it hopes that the index becomes free.
  const auto twin = StartOrFail(config);
  const absl::Status status = twin->WaitUntilReady();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr(ps1->address()));
}

TEST(ServerProcess, ACoordinatorAddressThatIsNotPsZeroIsNamed) {
  const auto ps0 = StartOrFail(ConfigOf(3, 0));
  ASSERT_NE(ps0, nullptr);
  const auto ps1 = StartOrFail(ConfigOf(3, 1, ps0->address()));
  ASSERT_NE(ps1, nullptr);
  const auto lost = StartOrFail(ConfigOf(3, 2, ps1->address()));
  const absl::Status status = lost->WaitUntilReady();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not the ps with index 0"));
}

TEST(ServerProcess, AServerGoesOnWithoutTheCoordinatorAndJoinsItAgain) {
  v1::Config config = ConfigOf(2, 0);
  config.mutable_coordinator()->set_lease_ms(1000);  // Heartbeats notice soon that the coordinator is gone.
  auto ps0 = StartOrFail(config);
  ASSERT_NE(ps0, nullptr);
  const std::string address = ps0->address();
  const auto ps1 = StartOrFail(ConfigOf(2, 1, address));
  ASSERT_TRUE(ps0->WaitUntilReady().ok());
  ASSERT_TRUE(ps1->WaitUntilReady().ok());
  ps0.reset();
  const v1::StatusResponse alone =
      AwaitStatus(*ps1, [](const v1::StatusResponse& status) { return status.waits_size() == 1; });
  EXPECT_THAT(alone.waits(0).what(), HasSubstr("goes on serving"));
  EXPECT_EQ(HealthOf(*ps1, ""), Health::kServing);
  config.mutable_server()->set_listen(address);
  ps0 = StartOrFail(config);
  ASSERT_NE(ps0, nullptr);
  EXPECT_TRUE(ps0->WaitUntilReady().ok()) << "ps 1 has joined again";
  AwaitStatus(*ps1, [](const v1::StatusResponse& status) { return status.waits_size() == 0; });
  EXPECT_EQ(StatusOf(*ps1).server().shards_owned(), 4);
}

TEST(ServerProcess, PsZeroComesBackFromItsFolderAndTheOthersGoOnWithoutNoticing) {
  v1::Config config = ConfigOf(2, 0);
  config.mutable_coordinator()->set_lease_ms(9000);  // Heartbeats notice within 3 s that the coordinator is gone.
  config.mutable_server()->set_data_dir(Folder());
  auto ps0 = StartOrFail(config);
  ASSERT_NE(ps0, nullptr);
  const std::string address = ps0->address();
  const auto ps1 = StartOrFail(ConfigOf(2, 1, address));
  ASSERT_TRUE(ps0->WaitUntilReady().ok());
  ASSERT_TRUE(ps1->WaitUntilReady().ok());
  BareWorker worker(address);
  const Incarnation incarnation1 = StatusOf(*ps0).cluster().servers(1).incarnation();
  ps0.reset();
  AwaitStatus(*ps1, [](const v1::StatusResponse& s) { return s.waits_size() == 1; });
  EXPECT_EQ(HealthOf(*ps1, ""), Health::kServing);

  config.mutable_server()->set_listen(address);
  ps0 = StartOrFail(config);
  ASSERT_NE(ps0, nullptr);
  EXPECT_TRUE(ps0->WaitUntilReady().ok()) << "the map is known, whichever servers are there";
  v1::HeartbeatResponse beat;
  const grpc::Status status = worker.Beat(&beat);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(beat.route_epoch(), 2) << "ps 0 has come back";
  const v1::ClusterStatus cluster = StatusOf(*ps0).cluster();
  EXPECT_EQ(cluster.servers(1).incarnation(), incarnation1);
  EXPECT_EQ(cluster.servers(1).peer(), ps1->address());
  EXPECT_TRUE(cluster.servers(1).alive());
  AwaitStatus(*ps1, [](const v1::StatusResponse& s) { return s.waits_size() == 0; });
  EXPECT_EQ(StatusOf(*ps0).cluster().servers(1).incarnation(), incarnation1) << "it did not have to join again";
  EXPECT_EQ(StatusOf(*ps0).cluster().route_epoch(), 2);
}

TEST(ServerProcess, AWholeClusterComesBackElsewhereAndTheRouteFollows) {
  const std::string folder = Folder();
  v1::Config config = ConfigOf(2, 0);
  config.mutable_coordinator()->set_lease_ms(1500);
  config.mutable_server()->set_data_dir(folder);
  std::string state, former_address;
  {
    const auto ps0 = StartOrFail(config);
    ASSERT_NE(ps0, nullptr);
    const auto ps1 = StartOrFail(ConfigOf(2, 1, ps0->address()));
    ASSERT_TRUE(ps0->WaitUntilReady().ok());
    ASSERT_TRUE(ps1->WaitUntilReady().ok());
    former_address = ps1->address();
    state = Content(folder + "/ps-0/coordinator");
  }
  SetContent(folder + "/ps-0/coordinator", state);  // As if nobody had had the time to leave.

  const auto ps0 = StartOrFail(config);
  ASSERT_NE(ps0, nullptr);
  EXPECT_TRUE(ps0->WaitUntilReady().ok()) << "it has its place at once";
  BareWorker worker(ps0->address());
  EXPECT_EQ(worker.Route().servers(0).address(), ps0->address());
  EXPECT_EQ(worker.Route().servers(1).address(), former_address) << "it may live";
  while (!worker.Route().servers(1).away()) std::this_thread::yield();
  const auto ps1 = StartOrFail(ConfigOf(2, 1, ps0->address()));
  ASSERT_TRUE(ps1->WaitUntilReady().ok());
  EXPECT_EQ(worker.Route().servers(1).address(), ps1->address());
  EXPECT_FALSE(worker.Route().servers(1).away());
  EXPECT_GE(worker.Route().epoch(), 3);
  EXPECT_EQ(StatusOf(*ps1).server().shards_owned(), 4);
}

TEST(ServerProcess, AServerThatIsBackSoonerThanItsFormerLeaseEndsWaitsForThat) {
  v1::Config config = ConfigOf(2, 0);
  config.mutable_coordinator()->set_lease_ms(1500);
  const std::string folder = Folder();
  config.mutable_server()->set_data_dir(folder);
  std::string state;
  {
    const auto ps0 = StartOrFail(config);
    const auto ps1 = StartOrFail(ConfigOf(2, 1, ps0->address()));
    ASSERT_TRUE(ps1->WaitUntilReady().ok());
    state = Content(folder + "/ps-0/coordinator");
  }
  SetContent(folder + "/ps-0/coordinator", state);
  const auto ps0 = StartOrFail(config);
  v1::Config config1 = ConfigOf(2, 1, ps0->address());
  const auto ps1 = StartOrFail(config1);
  const absl::Status ready = ps1->WaitUntilReady();
  EXPECT_TRUE(ready.ok()) << ready;
  EXPECT_EQ(StatusOf(*ps0).cluster().servers(1).peer(), ps1->address());
}

TEST(ServerProcess, DoesNotStartWithADamagedOrStrangeCoordinatorsState) {
  const std::string folder = Folder(), path = folder + "/ps-0/coordinator";
  v1::Config config = ConfigOf(1, 0);
  config.mutable_server()->set_data_dir(folder);
  ASSERT_TRUE(StartOrFail(config)->WaitUntilReady().ok());
  const std::string good = Content(path);

  std::string damaged = good;
  damaged[damaged.size() / 2] = static_cast<char>(~damaged[damaged.size() / 2]);
  SetContent(path, damaged);
  const absl::Status refused = ServerProcess::Start(config).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(path));

  SetContent(path, good);
  v1::Config other = config;
  other.mutable_cluster()->set_shards(16);
  EXPECT_THAT(std::string(ServerProcess::Start(other).status().message()), HasSubstr("cluster.shards 8"));
  EXPECT_TRUE(StartOrFail(config)->WaitUntilReady().ok());
}

TEST(ServerProcess, AServerThatComesBackIsInTheRouteUnderItsNewAddress) {
  const auto ps0 = StartOrFail(ConfigOf(2, 0));
  ASSERT_NE(ps0, nullptr);
  auto ps1 = StartOrFail(ConfigOf(2, 1, ps0->address()));
  ASSERT_TRUE(ps1->WaitUntilReady().ok());
  ps1.reset();  // Shuts down cleanly.
  ps1 = StartOrFail(ConfigOf(2, 1, ps0->address()));
  ASSERT_TRUE(ps1->WaitUntilReady().ok());
  const v1::ClusterStatus cluster = StatusOf(*ps0).cluster();
  EXPECT_EQ(cluster.route_epoch(), 2);
  EXPECT_EQ(cluster.servers(1).peer(), ps1->address());
}

TEST(ServerProcess, TellsWhatHappenedInTheClusterOnPsZeroAndToItselfElsewhere) {
  v1::Config config = ConfigOf(2, 0);
  const std::string folder = Folder();
  config.mutable_server()->set_data_dir(folder);
  const auto ps0 = StartOrFail(config);
  ASSERT_NE(ps0, nullptr);
  v1::Config config1 = ConfigOf(2, 1, ps0->address());
  config1.mutable_server()->set_data_dir(folder);
  auto ps1 = StartOrFail(config1);
  ASSERT_TRUE(ps0->WaitUntilReady().ok());
  ASSERT_TRUE(ps1->WaitUntilReady().ok());
  const BareWorker worker(ps0->address());
  // Either ps may have joined first.
  const auto events_of_ps0 = [&ps0] {
    std::vector<std::string> events = EventsOf(*ps0);
    if (events.size() >= 2) std::sort(events.begin(), events.begin() + 2);
    return events;
  };
  EXPECT_THAT(events_of_ps0(), testing::ElementsAre("joined ps 0", "joined ps 1", "joined worker 0"));
  EXPECT_THAT(EventsOf(*ps1), testing::IsEmpty());
  grpc::ClientContext context;
  v1::CheckpointRequest request;
  request.set_name("mine");
  v1::CheckpointResponse response;
  const auto stub = v1::Admin::NewStub(MakeChannel(ps1->address(), kMessageBytesMax));
  const grpc::Status status = stub->Checkpoint(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(EventsOf(*ps1), testing::ElementsAre("checkpointed ps 1"));
  ps1.reset();  // Its last heartbeat tells what no other has.
  EXPECT_THAT(events_of_ps0(),
              testing::ElementsAre("joined ps 0", "joined ps 1", "joined worker 0", "checkpointed ps 1", "left ps 1"));
}

TEST(ServerProcess, RefusesACheckpointByItsNameBeforeAnythingElse) {
  const auto ps = StartOrFail(ConfigOf(1, 0));  // It keeps nothing on disk.
  ASSERT_NE(ps, nullptr);
  const auto stub = v1::Admin::NewStub(MakeChannel(ps->address(), kMessageBytesMax));
  for (const auto& [name, code] : {std::pair("../up", grpc::StatusCode::INVALID_ARGUMENT),
                                   std::pair("mine", grpc::StatusCode::FAILED_PRECONDITION)}) {
    grpc::ClientContext context;
    v1::CheckpointRequest request;
    request.set_name(name);
    v1::CheckpointResponse response;
    EXPECT_EQ(stub->Checkpoint(&context, request, &response).error_code(), code) << name;
  }
}

TEST(ServerProcess, TellsWhosePushesWereRefusedByTheWorkersName) {
  v1::Config config = ConfigOf(1, 0);
  config.mutable_coordinator()->set_lease_ms(900);  // Heartbeats come soon.
  const auto ps0 = StartOrFail(config);
  ASSERT_NE(ps0, nullptr);
  ASSERT_TRUE(ps0->WaitUntilReady().ok());
  BareWorker worker(ps0->address());
  const auto parameters = v1::ParameterServer::NewStub(MakeChannel(ps0->address(), kMessageBytesMax));
  const Incarnation incarnation = StatusOf(*ps0).cluster().workers(0).incarnation();
  {
    grpc::ClientContext context;
    v1::EnsureTablesRequest request;
    request.set_worker_incarnation(incarnation);
    v1::EnsureTablesResponse response;
    ASSERT_TRUE(parameters->EnsureTables(&context, request, &response).ok());
  }
  for (int i = 0; i < 3; ++i) {
    grpc::ClientContext context;
    v1::PushRequest request;
    request.set_worker_incarnation(incarnation);
    request.set_sequence(1 + i);
    request.add_parts()->set_table(4711);
    v1::PushResponse response;
    EXPECT_EQ(parameters->Push(&context, request, &response).error_code(), grpc::StatusCode::NOT_FOUND);
  }
  EXPECT_EQ(AwaitEvent(*ps0, "refused worker 0"), 1) << "the others wait to be told together";
}

TEST(ServerProcess, TellsHowTrainingHasGoneOn) {
  const auto ps0 = StartOrFail(ConfigOf(1, 0));
  ASSERT_NE(ps0, nullptr);
  ASSERT_TRUE(ps0->WaitUntilReady().ok());
  const BareWorker worker(ps0->address());
  const auto stub = v1::Admin::NewStub(MakeChannel(ps0->address(), kMessageBytesMax));
  v1::HistoryResponse history;
  while (history.points().empty()) {
    grpc::ClientContext context;
    ASSERT_TRUE(stub->History(&context, v1::HistoryRequest(), &history).ok());
  }
  EXPECT_EQ(history.points(0).workers(), 1);
  EXPECT_NEAR(static_cast<double>(history.points(0).time_ms()), static_cast<double>(absl::ToUnixMillis(absl::Now())),
              3'600'000.0);
}

TEST(ServerProcess, HeartbeatsTellTheCoordinatorHowServersGo) {
  v1::Config config = ConfigOf(2, 0);
  config.mutable_coordinator()->set_lease_ms(900);
  const auto ps0 = StartOrFail(config);
  ASSERT_NE(ps0, nullptr);
  const auto ps1 = StartOrFail(ConfigOf(2, 1, ps0->address()));
  ASSERT_TRUE(ps1->WaitUntilReady().ok());
  const v1::StatusResponse status = AwaitStatus(*ps0, [](const v1::StatusResponse& now) {
    return now.cluster().servers_size() == 2 && now.cluster().servers(1).server().resident_bytes() > 0;
  });
  EXPECT_EQ(status.cluster().servers(1).shards_owned(), 4);
  EXPECT_EQ(status.cluster().servers(1).shards_following(), 0);
}

TEST(ServerProcess, TheClustersStatusNamesHotShardsAndLeavesOutTheLoadsOfAll) {
  const auto ps0 = StartOrFail(ConfigOf(2, 0));
  ASSERT_NE(ps0, nullptr);
  const auto coordinator = v1::Coordinator::NewStub(MakeChannel(ps0->address(), kMessageBytesMax));
  v1::JoinResponse joined;
  {
    grpc::ClientContext context;
    v1::JoinRequest request;
    request.set_role(v1::ROLE_SERVER);
    request.set_cluster("lodestone");
    request.set_index_plus_one(2);
    request.set_address(ps0->address());  // Something listens there.
    request.set_shards(8);
    request.set_servers(2);
    const grpc::Status status = coordinator->Join(&context, request, &joined);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  {
    grpc::ClientContext context;
    v1::HeartbeatRequest request;
    request.set_incarnation(joined.incarnation());
    for (uint32_t shard = 1; shard < 8; shard += 2) {
      v1::ShardLoad* const load = request.mutable_server()->add_shards();
      load->set_shard(shard);
      load->set_push_bytes_per_second(shard == 3 ? 97e6 : 1e6);
    }
    v1::HeartbeatResponse response;
    const grpc::Status status = coordinator->Heartbeat(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  const v1::ClusterStatus cluster = StatusOf(*ps0).cluster();
  ASSERT_EQ(cluster.hot_shards_size(), 1);
  EXPECT_EQ(cluster.hot_shards(0).shard(), 3);
  for (const v1::MemberStatus& member : cluster.servers()) EXPECT_EQ(member.server().shards_size(), 0);
}

TEST(ServerProcess, ShutdownEndsHeldCallsAndStreams) {
  const auto ps0 = StartOrFail(ConfigOf(1, 0));
  ASSERT_NE(ps0, nullptr);
  ASSERT_TRUE(ps0->WaitUntilReady().ok());
  const auto channel = MakeChannel(ps0->address(), kMessageBytesMax);
  const auto coordinator = v1::Coordinator::NewStub(channel);
  {
    grpc::ClientContext context;
    v1::JoinRequest request;
    request.set_role(v1::ROLE_WORKER);
    request.set_cluster("lodestone");
    v1::JoinResponse response;
    ASSERT_TRUE(coordinator->Join(&context, request, &response).ok());
  }
  const auto parameters = v1::ParameterServer::NewStub(channel);
  v1::EnsureTablesRequest tables;
  tables.add_tables()->set_name("t");
  tables.mutable_tables(0)->mutable_dense()->add_dims(10);
  v1::EnsureTablesResponse made;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(parameters->EnsureTables(&context, tables, &made).ok());
  }
  v1::SubscribeRequest subscribe;
  subscribe.add_tables()->set_table(made.tables(0).id());
  grpc::ClientContext stream_context;
  const auto stream = parameters->Subscribe(&stream_context, subscribe);
  v1::Delta delta;
  ASSERT_TRUE(stream->Read(&delta));

  grpc::Status awaited;
  std::thread await([&] {
    grpc::ClientContext context;
    v1::AwaitClockRequest request;
    request.set_clock(7);
    request.set_timeout_ms(60'000);
    v1::AwaitClockResponse response;
    awaited = coordinator->AwaitClock(&context, request, &response);
  });
  AwaitStatus(*ps0, [](const v1::StatusResponse& status) { return status.waits_size() == 1; });
  ps0->Shutdown();
  await.join();
  EXPECT_EQ(awaited.error_code(), grpc::StatusCode::UNAVAILABLE);
  while (stream->Read(&delta)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(ServerProcess, ShutdownWhileItWaitsForOthersIsQuickAndTold) {
  const auto ps0 = StartOrFail(ConfigOf(2, 0));
  ASSERT_NE(ps0, nullptr);
  std::thread stop([&] { ps0->Shutdown(); });
  EXPECT_EQ(ps0->WaitUntilReady().code(), absl::StatusCode::kCancelled);
  stop.join();
}

}  // namespace
}  // namespace lodestone::server
