// Whole ps and the two copies of their shards: when one is ready, and that those that come back without what they owned
// serve nothing until an operator decides.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "common/wire/shard_map.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/admin.grpc.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/parameter_server.grpc.pb.h"
#include "server/process.h"
#include "tests/common/rpc/message_limit.h"
#include "tests/server/rpc/raw_call.h"

namespace lodestone::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint32_t kShards = 8;
constexpr uint32_t kServers = 2;
constexpr Key kKeys = 40;
constexpr Incarnation kPushingWorker = 7;

class LostShardsTest : public ::testing::Test {
 protected:
  LostShardsTest() {
    std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/lost_XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
  }

  // Starts ps `index`, which keeps its data in a folder of its own if `keeps`.
  void Start(uint32_t index, uint32_t replicas, bool keeps) {
    v1::Config config;
    config.mutable_cluster()->set_servers(kServers);
    config.mutable_cluster()->set_shards(kShards);
    config.mutable_cluster()->set_replicas(replicas);
    config.mutable_coordinator()->set_lease_ms(1500);
    config.mutable_server()->set_index(index);
    config.mutable_server()->set_executors(1);
    if (keeps) config.mutable_server()->set_data_dir(DataDirOf(index));
    config.mutable_security()->set_audit_log(absl::StrCat(folder_, "/audit-", index));
    if (index == 0 && !address_.empty()) config.mutable_server()->set_listen(address_);
    if (index > 0) config.mutable_coordinator()->set_address(address_);
    auto process = ServerProcess::Start(config);
    ASSERT_TRUE(process.ok()) << process.status();
    ps_[index] = *std::move(process);
    if (index == 0) address_ = ps_[0]->address();
  }
  std::string DataDirOf(uint32_t index) const { return absl::StrCat(folder_, "/", index); }

  // What the audit log of a ps says of the calls of a method: "OK: ps 1" each.
  std::vector<std::string> Audited(uint32_t index, const std::string& method) const {
    std::vector<std::string> calls;
    std::ifstream log(absl::StrCat(folder_, "/audit-", index));
    for (std::string line; std::getline(log, line);) {
      const auto entry = nlohmann::json::parse(line);
      if (entry["method"] != "/lodestone.v1.Admin/" + method) continue;
      calls.push_back(entry["outcome"].get<std::string>() + ": " + entry["what"].get<std::string>());
    }
    return calls;
  }

  template <typename Stub>
  std::unique_ptr<typename Stub::Stub> StubOf(uint32_t index) const {
    return Stub::NewStub(MakeChannel(ps_[index]->address(), kMessageBytesMax));
  }
  v1::StatusResponse StatusOf(uint32_t index) const {
    grpc::ClientContext context;
    v1::StatusResponse status;
    EXPECT_TRUE(StubOf<v1::Admin>(index)->Status(&context, v1::StatusRequest(), &status).ok());
    return status;
  }
  void Await(const std::function<bool()>& condition) const {
    while (!condition()) std::this_thread::yield();
  }
  // As health checks and Kubernetes see it.
  bool IsReady(uint32_t index) const {
    std::string response;
    const grpc::Status status =
        RawCall(MakeChannel(ps_[index]->address(), kMessageBytesMax), "/grpc.health.v1.Health/Check", "", &response);
    return status.ok() && response == "\x08\x01";
  }
  void AwaitUnserved(int lines) const {
    Await([&] { return StatusOf(0).cluster().unserved_size() == lines; });
  }
  grpc::Status AcceptLoss(uint32_t asked, uint32_t server) const {
    grpc::ClientContext context;
    v1::AcceptLossRequest request;
    request.set_server(server);
    v1::AcceptLossResponse response;
    return StubOf<v1::Admin>(asked)->AcceptLoss(&context, request, &response);
  }
  grpc::Status Promote(uint32_t server) const {
    grpc::ClientContext context;
    v1::PromoteRequest request;
    request.set_server(server);
    v1::PromoteResponse response;
    return StubOf<v1::Admin>(0)->Promote(&context, request, &response);
  }

  grpc::Status Ensure(uint32_t index) const {
    grpc::ClientContext context;
    v1::EnsureTablesRequest request;
    request.set_worker_incarnation(kPushingWorker);
    v1::TableSpec& spec = *request.add_tables();
    spec.set_name("rows");
    spec.mutable_embedding()->set_dim(1);
    spec.mutable_optimizer()->mutable_sgd();
    spec.mutable_optimizer()->set_learning_rate(-1);
    v1::EnsureTablesResponse response;
    return StubOf<v1::ParameterServer>(index)->EnsureTables(&context, request, &response);
  }
  v1::RouteResponse Route() const {
    grpc::ClientContext context;
    v1::RouteResponse route;
    EXPECT_TRUE(StubOf<v1::Coordinator>(0)->Route(&context, v1::RouteRequest(), &route).ok());
    return route;
  }
  template <typename Request>
  static Request RequestOf(Key key) {
    Request request;
    v1::Part* const part = request.add_parts();
    part->set_shard(ShardOfKey(key, kShards));
    part->set_table(TableIdOf("rows"));
    part->set_row_count(1);
    request.mutable_payload()->assign(reinterpret_cast<const char*>(&key), sizeof(key));
    return request;
  }
  // Adds `value` to every row, at the shards' owners.
  void PushToAll(float value) {
    const v1::RouteResponse route = Route();
    for (Key key = 0; key < kKeys; ++key) {
      auto request = RequestOf<v1::PushRequest>(key);
      request.set_worker_incarnation(kPushingWorker);
      request.set_sequence(++sequence_);
      request.mutable_payload()->append(reinterpret_cast<const char*>(&value), sizeof(value));
      grpc::ClientContext context;
      v1::PushResponse response;
      const grpc::Status pushed = StubOf<v1::ParameterServer>(route.owners(static_cast<int>(request.parts(0).shard())))
                                      ->Push(&context, request, &response);
      ASSERT_TRUE(pushed.ok()) << pushed.error_message();
    }
  }
  float Row(uint32_t index, Key key) const {
    grpc::ClientContext context;
    v1::PullResponse response;
    const grpc::Status pulled =
        StubOf<v1::ParameterServer>(index)->Pull(&context, RequestOf<v1::PullRequest>(key), &response);
    EXPECT_TRUE(pulled.ok()) << pulled.error_message();
    float value = -1;
    if (response.payload().size() == sizeof(value)) std::memcpy(&value, response.payload().data(), sizeof(value));
    return value;
  }

  std::string folder_;
  std::string address_;  // Of ps 0.
  std::unique_ptr<ServerProcess> ps_[kServers];
  Sequence sequence_ = 0;
};

TEST_F(LostShardsTest, APsWithoutAFolderThatIsStartedAnewServesNothingUntilTheLossIsAccepted) {
  ASSERT_NO_FATAL_FAILURE(Start(0, 1, /*keeps=*/false));
  ASSERT_NO_FATAL_FAILURE(Start(1, 1, /*keeps=*/false));
  ASSERT_TRUE(ps_[0]->WaitUntilReady().ok());
  ASSERT_TRUE(ps_[1]->WaitUntilReady().ok());
  ASSERT_TRUE(Ensure(0).ok());
  ASSERT_TRUE(Ensure(1).ok());
  ASSERT_NO_FATAL_FAILURE(PushToAll(1));
  ps_[1].reset();
  ASSERT_NO_FATAL_FAILURE(Start(1, 1, /*keeps=*/false));
  AwaitUnserved(1);
  EXPECT_THAT(StatusOf(0).cluster().unserved(0),
              HasSubstr("4 of 8 shards are lost and not served: ps 1 was restarted"));
  Await([this] { return StatusOf(1).waits_size() == 1; });
  EXPECT_EQ(StatusOf(1).waits(0).who(), "ps 1");
  EXPECT_THAT(StatusOf(1).waits(0).what(),
              HasSubstr("an operator: ps 1 was restarted without the data of 4 of 8 shards"));
  const grpc::Status refused = Ensure(1);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.error_message(), HasSubstr("`psctl accept-loss 1`"));

  EXPECT_EQ(AcceptLoss(0, 0).error_code(), grpc::StatusCode::FAILED_PRECONDITION) << "ps 0 has lost none";
  EXPECT_EQ(AcceptLoss(1, 1).error_code(), grpc::StatusCode::UNAVAILABLE) << "ps 1 serves no coordinator";
  const grpc::Status accepted = AcceptLoss(0, 1);
  ASSERT_TRUE(accepted.ok()) << accepted.error_message();
  ASSERT_TRUE(ps_[1]->WaitUntilReady().ok());
  EXPECT_TRUE(Ensure(1).ok());
  EXPECT_EQ(StatusOf(1).server().shards_owned(), 4);
  AwaitUnserved(0);
  EXPECT_THAT(Audited(0, "AcceptLoss"), ElementsAre(StartsWith("FAILED_PRECONDITION: ps 0: "), "OK: ps 1"));
  EXPECT_THAT(Audited(1, "AcceptLoss"),
              ElementsAre(StartsWith("UNAVAILABLE: ps 1: this ps does not serve the coordinator")));
}

TEST_F(LostShardsTest, APsWithoutAFolderThatHeldNothingHasLostNothing) {
  ASSERT_NO_FATAL_FAILURE(Start(0, 1, /*keeps=*/false));
  ASSERT_NO_FATAL_FAILURE(Start(1, 1, /*keeps=*/false));
  ASSERT_TRUE(ps_[1]->WaitUntilReady().ok());
  ps_[1].reset();
  ASSERT_NO_FATAL_FAILURE(Start(1, 1, /*keeps=*/false));
  EXPECT_TRUE(ps_[1]->WaitUntilReady().ok());
}

// A copy of a folder is the folder itself by its identity: it was served, without what was acknowledged since.
TEST_F(LostShardsTest, APsWithAnOlderCopyOfItsFolderServesNothingOfItUntilItHasItsNewestFolderAgain) {
  const auto recursive = std::filesystem::copy_options::recursive;
  ASSERT_NO_FATAL_FAILURE(Start(0, 1, /*keeps=*/true));
  ASSERT_NO_FATAL_FAILURE(Start(1, 1, /*keeps=*/true));
  ASSERT_TRUE(ps_[0]->WaitUntilReady().ok());
  ASSERT_TRUE(ps_[1]->WaitUntilReady().ok());
  ASSERT_TRUE(Ensure(0).ok());
  ASSERT_TRUE(Ensure(1).ok());
  ASSERT_NO_FATAL_FAILURE(PushToAll(1));
  ps_[1].reset();
  std::filesystem::copy(DataDirOf(1), folder_ + "/older", recursive);
  ASSERT_NO_FATAL_FAILURE(Start(1, 1, /*keeps=*/true));
  ASSERT_TRUE(ps_[1]->WaitUntilReady().ok());
  ASSERT_TRUE(Ensure(1).ok());
  ASSERT_NO_FATAL_FAILURE(PushToAll(2));
  ps_[1].reset();

  std::filesystem::rename(DataDirOf(1), folder_ + "/newest");
  std::filesystem::rename(folder_ + "/older", DataDirOf(1));
  ASSERT_NO_FATAL_FAILURE(Start(1, 1, /*keeps=*/true));
  AwaitUnserved(1);
  EXPECT_THAT(StatusOf(0).cluster().unserved(0),
              HasSubstr("4 of 8 shards are lost and not served: ps 1 was restarted with another copy of its folder "));
  Await([this] {
    const v1::StatusResponse status = StatusOf(1);
    return std::any_of(status.waits().begin(), status.waits().end(),
                       [](const v1::WaitStatus& wait) { return absl::StrContains(wait.what(), "another copy of it"); });
  });
  EXPECT_EQ(Ensure(1).error_code(), grpc::StatusCode::UNAVAILABLE);
  ps_[1].reset();

  std::filesystem::remove_all(DataDirOf(1));
  std::filesystem::rename(folder_ + "/newest", DataDirOf(1));
  ASSERT_NO_FATAL_FAILURE(Start(1, 1, /*keeps=*/true));
  ASSERT_TRUE(ps_[1]->WaitUntilReady().ok());
  AwaitUnserved(0);
  const v1::RouteResponse route = Route();
  for (Key key = 0; key < kKeys; ++key) {
    EXPECT_EQ(Row(route.owners(static_cast<int>(ShardOfKey(key, kShards))), key), 3) << "key " << key;
  }
}

// B18 of the review of durability: without followers a ps serves also without a lease.
TEST_F(LostShardsTest, APsWhosePlaceAnotherProcessTookServesNothingAnyMore) {
  ASSERT_NO_FATAL_FAILURE(Start(0, 1, /*keeps=*/false));
  ASSERT_NO_FATAL_FAILURE(Start(1, 1, /*keeps=*/false));
  ASSERT_TRUE(ps_[0]->WaitUntilReady().ok());
  ASSERT_TRUE(ps_[1]->WaitUntilReady().ok());
  ASSERT_TRUE(Ensure(0).ok());
  ASSERT_TRUE(Ensure(1).ok());
  ASSERT_NO_FATAL_FAILURE(PushToAll(1));
  const v1::RouteResponse route = Route();
  Key key = 0;
  while (route.owners(static_cast<int>(ShardOfKey(key, kShards))) != 1) ++key;
  EXPECT_EQ(Row(1, key), 1);

  // Another process says that it is where ps 1 is, as after a machine was given up and its address given away.
  v1::JoinRequest request;
  request.set_role(v1::ROLE_SERVER);
  request.set_cluster(v1::Config().cluster().name());
  request.set_shards(kShards);
  request.set_index_plus_one(2);
  request.set_address(ps_[1]->address());
  request.set_token(4711);
  v1::JoinResponse joined;
  {
    grpc::ClientContext context;
    const grpc::Status status = StubOf<v1::Coordinator>(0)->Join(&context, request, &joined);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }
  grpc::Status pulled;
  Await([&] {
    grpc::ClientContext context;
    v1::PullResponse response;
    pulled = StubOf<v1::ParameterServer>(1)->Pull(&context, RequestOf<v1::PullRequest>(key), &response);
    return !pulled.ok();
  });
  EXPECT_EQ(pulled.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(pulled.error_message(), HasSubstr("another process is ps 1 now"));
  Await([&] { return StatusOf(1).waits_size() == 1; });
  EXPECT_THAT(StatusOf(1).waits(0).what(), HasSubstr("serves nothing any more"));
  EXPECT_EQ(Route().servers(1).incarnation(), joined.incarnation()) << "nor does it take its place back";
}

TEST_F(LostShardsTest, AfterTheOnlyOwnersFolderIsGoneTheOthersStaleCopyIsKeptAndServedOnceItIsPromoted) {
  ASSERT_NO_FATAL_FAILURE(Start(0, 2, /*keeps=*/true));
  ASSERT_NO_FATAL_FAILURE(Start(1, 2, /*keeps=*/true));
  Await([this] { return IsReady(0) && IsReady(1); });
  ASSERT_TRUE(Ensure(0).ok());
  ASSERT_TRUE(Ensure(1).ok());
  ASSERT_NO_FATAL_FAILURE(PushToAll(5));
  ps_[1].reset();
  Await([this] { return StatusOf(0).server().shards_owned() == kShards; });
  ASSERT_NO_FATAL_FAILURE(PushToAll(5));  // Acknowledged by ps 0 alone.
  EXPECT_EQ(Row(0, 3), 10);
  ps_[0].reset();
  std::filesystem::remove_all(DataDirOf(0));  // And with it the coordinator's state.

  ASSERT_NO_FATAL_FAILURE(Start(0, 2, /*keeps=*/true));
  ASSERT_NO_FATAL_FAILURE(Start(1, 2, /*keeps=*/true));
  AwaitUnserved(2);
  EXPECT_EQ(Ensure(0).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Ensure(1).error_code(), grpc::StatusCode::UNAVAILABLE);
  ASSERT_TRUE(AcceptLoss(0, 1).ok());
  ASSERT_TRUE(ps_[1]->WaitUntilReady().ok());
  Await([this] {
    return StatusOf(0).cluster().unserved_size() == 1 &&
           absl::StrContains(StatusOf(0).cluster().unserved(0), "`psctl promote 1`");
  });
  EXPECT_EQ(Promote(0).error_code(), grpc::StatusCode::FAILED_PRECONDITION) << "ps 0 holds no copy";
  const grpc::Status promoted = Promote(1);
  ASSERT_TRUE(promoted.ok()) << promoted.error_message();
  EXPECT_THAT(Audited(0, "Promote"), ElementsAre(StartsWith("FAILED_PRECONDITION: ps 0: "), "OK: ps 1"));
  EXPECT_THAT(Audited(0, "AcceptLoss"), ElementsAre("OK: ps 1"));
  Await([this] { return StatusOf(1).server().shards_owned() == kShards; });
  AwaitUnserved(0);
  for (Key key = 0; key < kKeys; ++key) EXPECT_EQ(Row(1, key), 5) << "key " << key;
  Await([this] { return StatusOf(0).cluster().shards_in_sync() == kShards; });
}

TEST_F(LostShardsTest, AfterTheCoordinatorsFolderIsGoneWhileTheOthersLiveItServesNothing) {
  ASSERT_NO_FATAL_FAILURE(Start(0, 2, /*keeps=*/true));
  ASSERT_NO_FATAL_FAILURE(Start(1, 2, /*keeps=*/true));
  Await([this] { return IsReady(0) && IsReady(1); });
  ASSERT_TRUE(Ensure(0).ok());
  ASSERT_TRUE(Ensure(1).ok());
  ASSERT_NO_FATAL_FAILURE(PushToAll(5));
  ps_[0].reset();
  std::filesystem::remove_all(DataDirOf(0));
  ASSERT_NO_FATAL_FAILURE(Start(0, 2, /*keeps=*/true));
  AwaitUnserved(2);
  EXPECT_EQ(Ensure(0).error_code(), grpc::StatusCode::UNAVAILABLE);
  ps_[1].reset();  // Its shard map is newer than any of the new coordinator's.
  ASSERT_NO_FATAL_FAILURE(Start(1, 2, /*keeps=*/true));
  Await([this] { return AcceptLoss(0, 1).ok(); });
  ASSERT_TRUE(ps_[1]->WaitUntilReady().ok());
  Await([this] { return Promote(1).ok(); });
  Await([this] { return StatusOf(1).server().shards_owned() == kShards; });
  for (Key key = 0; key < kKeys; ++key) EXPECT_EQ(Row(1, key), 5) << "key " << key;
}

TEST_F(LostShardsTest, APsIsReadyOnceAllThatItOwnsAndFollowsHasTwoCopies) {
  ASSERT_NO_FATAL_FAILURE(Start(0, 2, /*keeps=*/true));
  ASSERT_NO_FATAL_FAILURE(Start(1, 2, /*keeps=*/true));
  Await([this] { return IsReady(0) && IsReady(1); });
  EXPECT_EQ(StatusOf(0).cluster().shards_in_sync(), kShards);
  ASSERT_TRUE(Ensure(0).ok());
  ASSERT_TRUE(Ensure(1).ok());
  ASSERT_NO_FATAL_FAILURE(PushToAll(1));
  ps_[1].reset();
  Await([this] { return StatusOf(0).cluster().shards_in_sync() == 0; });
  EXPECT_TRUE(IsReady(0)) << "there is no other ps that could have copies";
  ASSERT_NO_FATAL_FAILURE(Start(1, 2, /*keeps=*/true));
  Await([this] { return IsReady(1); });
  EXPECT_EQ(StatusOf(0).cluster().shards_in_sync(), kShards) << "ps 0 may be ended now";
}

}  // namespace
}  // namespace lodestone::server
