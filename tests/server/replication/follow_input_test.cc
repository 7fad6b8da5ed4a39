// What an owner, and a follower, make of a peer that does not keep to the protocol.
#include <thread>

#include "absl/strings/match.h"
#include "common/wire/message.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/server_context.h"
#include "tests/server/replication/raw_follower.h"
#include "tests/server/replication/replica_fixture.h"

namespace lodestone::server {
namespace {

class FollowInputTest : public ReplicaFixture {
 protected:
  void SetUp() override {
    Start();
    ASSERT_NO_FATAL_FAILURE(PushMany(1, 3));
  }
  v1::FollowStart Good() { return RawFollower::StartOf(b().incarnation(), kShards, {{0, 0}, {1, 0}}); }
  absl::Status EndOf(const v1::FollowStart& start) {
    RawFollower raw(a().address);
    raw.Start(start);
    return raw.AwaitEnd();
  }
  // After whatever came, a follower that does as it should is served.
  void ExpectServes() {
    b().Begin();
    ASSERT_TRUE(coordinator_.Await([this] { return coordinator_.AllInSync(); }));
    ASSERT_NO_FATAL_FAILURE(PushMany(4, 5));
    ExpectSame(&a(), &b());
  }
};

TEST_F(FollowInputTest, AFollowerOfAnotherClusterIsRefused) {
  v1::FollowStart start = Good();
  start.set_cluster("another");
  EXPECT_TRUE(absl::IsFailedPrecondition(EndOf(start))) << EndOf(start);
  start = Good();
  start.set_shards(kShards + 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(EndOf(start))) << EndOf(start);
  start = Good();
  start.set_seed(start.seed() + 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(EndOf(start))) << EndOf(start);
  ExpectServes();
}

TEST_F(FollowInputTest, AFollowerThatMeansAnotherOwnerIsToTryAgain) {
  v1::FollowStart start = Good();
  start.set_owner(1);
  EXPECT_TRUE(absl::IsUnavailable(EndOf(start))) << EndOf(start);
  ExpectServes();
}

TEST_F(FollowInputTest, AShardThatThereIsNotIsRefused) {
  for (const ShardId shard : {kShards, 1u << 31, ~0u}) {
    v1::FollowStart start = Good();
    start.add_follows()->set_shard(shard);
    const absl::Status status = EndOf(start);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), std::to_string(shard))) << status;
    RawFollower raw(a().address);
    raw.Start(Good());
    raw.Ack(shard, 1);
    const absl::Status acked = raw.AwaitEnd();
    EXPECT_TRUE(absl::IsInvalidArgument(acked)) << acked;
  }
  ExpectServes();
}

TEST_F(FollowInputTest, NobodyConfirmsWhatWasNotSent) {
  RawFollower raw(a().address);
  raw.Start(Good());
  ASSERT_TRUE(raw.ReadUntil(v1::FollowItem::kStateEnds));
  for (int i = 0; i < 2; ++i) raw.Ack(static_cast<ShardId>(i), 1'000'000);
  const absl::Status status = raw.AwaitEnd();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  ExpectServes();
}

TEST_F(FollowInputTest, AStreamStartsOnce) {
  RawFollower raw(a().address);
  raw.Start(Good());
  raw.Start(Good());
  const absl::Status status = raw.AwaitEnd();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  v1::FollowStart nobody = Good();
  nobody.set_incarnation(0);
  EXPECT_TRUE(absl::IsInvalidArgument(EndOf(nobody)));
  ExpectServes();
}

TEST_F(FollowInputTest, NothingIsConfirmedBeforeTheStart) {
  RawFollower raw(a().address);
  raw.Ack(0, 1);
  const absl::Status status = raw.AwaitEnd();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  ExpectServes();
}

TEST_F(FollowInputTest, GarbageEndsItsStreamOnly) {
  const auto channel = MakeChannel(a().address, 64 << 20);
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel);
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff garbage"), std::string(100'000, '\x0a')}) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    const auto stream = stub.PrepareCall(&context, "/lodestone.v1.Replication/Follow", &queue);
    const auto step = [&queue] {
      void* tag = nullptr;
      bool ok = false;
      EXPECT_TRUE(queue.Next(&tag, &ok));
      return ok;
    };
    stream->StartCall(nullptr);
    ASSERT_TRUE(step());
    const grpc::Slice slice(bytes);
    stream->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    step();
    grpc::Status status;
    stream->Finish(&status, nullptr);
    step();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  }
  ExpectServes();
}

// Sends a follower what a test says, and keeps what it confirms.
class FakeOwner final : public v1::Replication::Service {
 public:
  explicit FakeOwner(std::vector<v1::FollowItem> items) : items_(std::move(items)) {}

  grpc::Status Follow(grpc::ServerContext*,
                      grpc::ServerReaderWriter<v1::FollowResponse, v1::FollowRequest>* stream) override {
    v1::FollowRequest request;
    if (!stream->Read(&request)) return grpc::Status::OK;
    for (const v1::FollowItem& item : items_) {
      v1::FollowResponse response;
      *response.add_items() = item;
      stream->Write(response);
    }
    while (stream->Read(&request)) {
      MutexLock lock(&mu_);
      for (const v1::ShardPosition& applied : request.acks().applied()) acks_.push_back(applied);
    }
    return grpc::Status::OK;
  }
  std::vector<v1::ShardPosition> acks() const {
    MutexLock lock(&mu_);
    return acks_;
  }

 private:
  const std::vector<v1::FollowItem> items_;
  mutable Mutex mu_;
  std::vector<v1::ShardPosition> acks_ ABSL_GUARDED_BY(mu_);
};

TEST_F(FollowInputTest, AFollowerDoesNotConfirmAShardWhoseStateIsNotWhole) {
  // A shard without updates is at version 0 before its state comes, too.
  std::vector<v1::FollowItem> items(4);
  items[0].mutable_state_begins()->set_shard(0);
  items[1].mutable_state_begins()->set_shard(1);
  items[2].mutable_state_begins()->set_shard(2);
  items[3].mutable_state_ends()->set_shard(2);
  FakeOwner owner(items);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&owner);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  coordinator_.SetServer(0, absl::StrCat("127.0.0.1:", port), a().incarnation());
  b().Begin();
  ASSERT_TRUE(coordinator_.Await([&] { return !owner.acks().empty(); }));
  for (const v1::ShardPosition& ack : owner.acks()) EXPECT_EQ(ack.shard(), 2u);
  b().replication->Shutdown();
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace
}  // namespace lodestone::server
