#include "server/rpc/parameter_service.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <latch>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "server/rpc/broadcaster.h"
#include "server/rpc/call_memory.h"
#include "server/rpc/delta_sink.h"
#include "server/rpc/exchange.h"
#include "server/rpc/subscriber.h"
#include "server/store/store.h"
#include "tests/server/rpc/exchange_tables.h"
#include "tests/server/rpc/raw_call.h"
#include "tests/server/store/busy_executor.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kMessageBytesMax = 1 << 20;
constexpr char kPush[] = "/lodestone.v1.ParameterServer/Push";
constexpr char kPull[] = "/lodestone.v1.ParameterServer/Pull";
constexpr char kPushPull[] = "/lodestone.v1.ParameterServer/PushPull";
constexpr char kSubscribe[] = "/lodestone.v1.ParameterServer/Subscribe";
constexpr char kEnsureTables[] = "/lodestone.v1.ParameterServer/EnsureTables";

// A server with a dense and an embedding table, and a client as any other language would generate it.
class ServiceTest : public StoreTest {
 protected:
  void SetUp() override {
    Make();
    broadcaster_ = std::make_unique<Broadcaster>(store_.get(), 16);
    exchange_ = std::make_unique<Exchange>(store_.get(), broadcaster_.get(), kServerIncarnation);
    service_ = std::make_unique<ParameterService>(store_.get(), broadcaster_.get(), exchange_.get(), kServerIncarnation,
                                                  nullptr, &memory_);
    grpc::ServerBuilder builder;
    ApplyServerSettings(&builder, kMessageBytesMax);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    channel_ = MakeChannel("127.0.0.1:" + std::to_string(port_), 64 << 20);
    stub_ = v1::ParameterServer::NewStub(channel_);

    v1::EnsureTablesRequest request;
    request.set_worker_incarnation(kWorker);
    *request.add_tables() = AddingDense("dense", kElements, kBlockElements);
    *request.add_tables() = AddingRows("rows", kDim);
    grpc::ClientContext context;
    const grpc::Status status = stub_->EnsureTables(&context, request, &tables_);
    ASSERT_TRUE(status.ok()) << status.error_message();
    ASSERT_EQ(tables_.tables_size(), 2);
  }

  void TearDown() override {
    broadcaster_->Shutdown();
    server_->Shutdown();
    server_.reset();
    broadcaster_.reset();
  }

  TableId dense() const { return tables_.tables(0).id(); }
  TableId rows() const { return tables_.tables(1).id(); }

  // A push of `value` to every element of both tables (rows 1 to 5).
  v1::PushRequest MakePush(Sequence sequence, float value) {
    RequestBuilder<v1::PushRequest> push = NewPush(sequence);
    push.AddDense(dense(), kLayout, value);
    push.AddRows(rows(), kDim, {{1, value}, {2, value}, {3, value}, {4, value}, {5, value}}, true);
    push.header.set_payload(push.bytes());
    return push.header;
  }
  v1::PullRequest MakePull() {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddDense(dense(), kLayout, std::nullopt);
    pull.AddRows(rows(), kDim, {{1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}}, false);
    pull.header.set_payload(pull.bytes());
    return pull.header;
  }

  grpc::Status Push(const v1::PushRequest& request, v1::PushResponse* response = nullptr) {
    grpc::ClientContext context;
    v1::PushResponse ignored;
    return stub_->Push(&context, request, response == nullptr ? &ignored : response);
  }

  // A push of `value` and a pull of what it leads to.
  v1::PushPullRequest MakePushPull(Sequence sequence, float value) {
    v1::PushPullRequest request;
    *request.mutable_push() = MakePush(sequence, value);
    *request.mutable_pull() = MakePull();
    request.set_payload(request.push().payload() + request.pull().payload());
    request.mutable_push()->clear_payload();
    request.mutable_pull()->clear_payload();
    return request;
  }
  grpc::Status PushPull(const v1::PushPullRequest& request) {
    grpc::ClientContext context;
    v1::PushPullResponse response;
    return stub_->PushPull(&context, request, &response);
  }

  // A pull of all values; without an executor's help, it waits.
  grpc::Status Pull() {
    grpc::ClientContext context;
    v1::PullResponse response;
    return stub_->Pull(&context, MakePull(), &response);
  }
  // A pull that needs no executor.
  grpc::Status PullDense() {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddDense(dense(), kLayout, std::nullopt);
    grpc::ClientContext context;
    v1::PullResponse response;
    return stub_->Pull(&context, pull.header, &response);
  }

  // What both tables hold; all elements must be the same.
  float PullValue() {
    grpc::ClientContext context;
    v1::PullResponse response;
    const grpc::Status status = stub_->Pull(&context, MakePull(), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return CommonValue(response.payload());
  }
  static float CommonValue(const std::string& payload) {
    const std::vector<float> values = Floats(payload);
    EXPECT_EQ(values.size(), kElements + 5 * kDim);
    for (const float value : values) EXPECT_EQ(value, values[0]);
    return values.empty() ? -1 : values[0];
  }

  // Waits until calls hold `bytes`: they do for a moment after they are answered.
  void AwaitHeld(uint64_t bytes) const {
    while (memory_.bytes() != bytes) std::this_thread::yield();
  }

  static constexpr BlockLayout kLayout{kElements, kBlockElements};
  static constexpr uint64_t kAnswerBytes = (kElements + 5 * kDim) * sizeof(float);  // Of MakePull.
  SteadyTime clock_;
  CallMemory memory_{[] { return kMessageBytesMax; }, &clock_};
  int port_ = 0;
  std::unique_ptr<Broadcaster> broadcaster_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<ParameterService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::ParameterServer::Stub> stub_;
  v1::EnsureTablesResponse tables_;
};

TEST_F(ServiceTest, EnsureTablesTellsTheServersIncarnationAndTheTablesLayout) {
  EXPECT_EQ(tables_.server_incarnation(), kServerIncarnation);
  EXPECT_EQ(tables_.tables(0).block_elements(), kBlockElements);
  EXPECT_EQ(tables_.tables(0).block_count(), kLayout.block_count());
}

TEST_F(ServiceTest, WhatIsPushedIsPulled) {
  v1::PushResponse response;
  ASSERT_TRUE(Push(MakePush(1, 3), &response).ok());
  EXPECT_EQ(response.shards_size(), kShards);
  EXPECT_EQ(PullValue(), 3);
  ASSERT_TRUE(Push(MakePush(2, 4)).ok());
  EXPECT_EQ(PullValue(), 7);
}

TEST_F(ServiceTest, ARepeatedPushIsAnsweredAndNotAppliedAgain) {
  const v1::PushRequest push = MakePush(1, 3);
  ASSERT_TRUE(Push(push).ok());
  v1::PushResponse again;
  ASSERT_TRUE(Push(push, &again).ok());
  for (const auto& shard : again.shards()) EXPECT_TRUE(shard.duplicate());
  EXPECT_EQ(PullValue(), 3);
}

TEST_F(ServiceTest, ThePullOfAPushPullHoldsWhatItsPushDid) {
  for (Sequence sequence = 1; sequence <= 20; ++sequence) {
    const v1::PushPullRequest request = MakePushPull(sequence, 2);
    grpc::ClientContext context;
    v1::PushPullResponse response;
    const grpc::Status status = stub_->PushPull(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(response.push().shards_size(), kShards);
    EXPECT_EQ(response.pull().parts_size(), request.pull().parts_size());
    EXPECT_EQ(CommonValue(response.payload()), 2.0f * sequence);
  }
}

TEST_F(ServiceTest, APushPullWhosePayloadDoesNotFitChangesNothing) {
  v1::PushPullRequest request;
  *request.mutable_push() = MakePush(1, 2);
  const std::string payload = request.push().payload();
  {
    grpc::ClientContext context;
    v1::PushPullResponse response;
    const grpc::Status status = stub_->PushPull(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr("must be empty"));
  }
  request.mutable_push()->clear_payload();
  request.set_payload(payload.substr(1));
  {
    grpc::ClientContext context;
    v1::PushPullResponse response;
    const grpc::Status status = stub_->PushPull(&context, request, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  }
  EXPECT_EQ(PullValue(), 0);
}

// Regression: the push was applied, and the answer was the pull's error.
TEST_F(ServiceTest, APushPullWhosePullCannotBeAnsweredAppliesNoPush) {
  const auto push_pull = [&](const std::function<void(v1::PullRequest*)>& change) {
    v1::PushPullRequest request;
    *request.mutable_push() = MakePush(1, 2);
    *request.mutable_pull() = MakePull();
    change(request.mutable_pull());
    request.set_payload(request.push().payload() + request.pull().payload());
    request.mutable_push()->clear_payload();
    request.mutable_pull()->clear_payload();
    grpc::ClientContext context;
    v1::PushPullResponse response;
    return stub_->PushPull(&context, request, &response).error_code();
  };
  EXPECT_EQ(push_pull([](auto* pull) { pull->mutable_parts(0)->set_table(12345); }), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(push_pull([](auto* pull) { pull->mutable_parts(0)->add_blocks(0); }), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(push_pull([](auto* pull) { pull->mutable_payload()->pop_back(); }), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(PullValue(), 0);
  EXPECT_EQ(push_pull([](auto*) {}), grpc::StatusCode::OK);
  EXPECT_EQ(PullValue(), 2);
}

// Regression: each held a thread that serves calls, until none was left, not even for heartbeats.
TEST_F(ServiceTest, CallsAreAnsweredHoweverManyWaitForTablesToBeMade) {
  constexpr Incarnation kMakers = 20;
  BusyExecutor busy(&store_->shards().executors()[0]);
  std::vector<std::thread> makers;
  for (Incarnation maker = 1; maker <= kMakers; ++maker) {
    makers.emplace_back([&, maker] {
      v1::EnsureTablesRequest request;
      request.set_worker_incarnation(kWorker + maker);
      *request.add_tables() = AddingDense("made_later", kElements, kBlockElements);
      grpc::ClientContext context;
      v1::EnsureTablesResponse response;
      const grpc::Status status = stub_->EnsureTables(&context, request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
    });
  }
  while (store_->sessions().known().open.size() < 1 + kMakers) std::this_thread::yield();
  busy.AwaitQueued();
  EXPECT_TRUE(PullDense().ok());
  v1::EnsureTablesRequest exists;
  exists.set_worker_incarnation(kWorker);
  *exists.add_tables() = AddingDense("dense", kElements, kBlockElements);
  {
    grpc::ClientContext context;
    v1::EnsureTablesResponse response;
    EXPECT_TRUE(stub_->EnsureTables(&context, exists, &response).ok());
    EXPECT_EQ(response.server_incarnation(), kServerIncarnation);
  }
  busy.Release();
  for (std::thread& maker : makers) maker.join();
}

// Regression: gRPC ended it with CANCELLED, which retry policies do not try again.
TEST_F(ServiceTest, ACallUnderWayEndsWithUnavailableWhenThePsEnds) {
  BusyExecutor busy(&store_->shards().executors()[0]);
  grpc::Status pushed;
  std::thread pusher([&] { pushed = Push(MakePush(1, 1)); });
  busy.AwaitQueued();
  service_->Drain(/*grace_ms=*/0);
  pusher.join();
  EXPECT_EQ(pushed.error_code(), grpc::StatusCode::UNAVAILABLE) << pushed.error_message();
  EXPECT_EQ(Push(MakePush(2, 1)).error_code(), grpc::StatusCode::UNAVAILABLE) << "a later one";
  busy.Release();
}

TEST_F(ServiceTest, ACallMayEndByItselfWhileThePsEnds) {
  BusyExecutor busy(&store_->shards().executors()[0]);
  grpc::Status pushed;
  std::thread pusher([&] { pushed = Push(MakePush(1, 1)); });
  busy.AwaitQueued();
  std::thread drain([&] { service_->Drain(/*grace_ms=*/60'000); });
  while (PullDense().error_code() != grpc::StatusCode::UNAVAILABLE) std::this_thread::yield();
  busy.Release();
  pusher.join();
  EXPECT_TRUE(pushed.ok()) << pushed.error_message();
  drain.join();
}

// Regression: answers counted and were not bounded, so that a dozen pulls held gigabytes.
TEST_F(ServiceTest, AnAnswerThatHasNoRoomBesideOtherCallsIsRefusedBeforeAnythingIsDone) {
  memory_.Take(kMessageBytesMax - kAnswerBytes + 1);  // By other calls.
  const auto refused = [](const grpc::Status& status) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("send the call again"));
  };
  for (int i = 0; i < 3; ++i) refused(Pull());
  refused(PushPull(MakePushPull(1, 2)));
  AwaitHeld(kMessageBytesMax - kAnswerBytes + 1);
  memory_.Give(memory_.bytes());
  EXPECT_EQ(PullValue(), 0);
  EXPECT_TRUE(PushPull(MakePushPull(1, 2)).ok());
  EXPECT_EQ(PullValue(), 2);
  AwaitHeld(0);
}

TEST_F(ServiceTest, CallsThatWaitForAnExecutorHoldNoMoreThanTheMemoryForCalls) {
  constexpr uint64_t kRoom = 2 * kAnswerBytes + kAnswerBytes / 2;
  memory_.Take(kMessageBytesMax - kRoom);
  BusyExecutor busy(&store_->shards().executors()[0]);
  std::vector<std::thread> pullers;
  for (int i = 0; i < 2; ++i) {
    pullers.emplace_back([&] { EXPECT_TRUE(Pull().ok()); });
  }
  while (memory_.bytes() < kMessageBytesMax - kRoom + 2 * kAnswerBytes) std::this_thread::yield();
  const uint64_t held = memory_.bytes();
  EXPECT_LE(held, kMessageBytesMax);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(Pull().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  AwaitHeld(held);
  busy.Release();
  for (std::thread& puller : pullers) puller.join();
  AwaitHeld(kMessageBytesMax - kRoom);
  EXPECT_TRUE(Pull().ok());
}

// Regression: it was inflated whole before its size was looked at.
TEST_F(ServiceTest, ACompressedMessageIsNotTaken) {
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::PushResponse response;
  EXPECT_EQ(stub_->Push(&context, MakePush(1, 2), &response).error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(PullValue(), 0);
}

TEST_F(ServiceTest, ErrorsOfTheStoreReachTheClient) {
  v1::PushRequest push = MakePush(1, 1);
  push.set_worker_incarnation(99);
  EXPECT_EQ(Push(push).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  push = MakePush(1, 1);
  push.mutable_parts(0)->set_table(12345);
  EXPECT_EQ(Push(push).error_code(), grpc::StatusCode::NOT_FOUND);
  push = MakePush(1, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(Push(push).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(PullValue(), 0);
}

// Reads a stream until the subscriber holds `value` everywhere in the dense table.
void ReadUntil(grpc::ClientReader<v1::Delta>* reader, float value, std::vector<float>* held, bool* anchor_seen) {
  const auto all_there = [&] {
    for (const float x : *held) {
      if (x != value) return false;
    }
    return true;
  };
  v1::Delta delta;
  while (!all_there()) {
    ASSERT_TRUE(reader->Read(&delta));
    size_t at = 0;
    for (const auto& shard : delta.shards()) {
      *anchor_seen |= shard.anchor();
      for (const v1::Part& part : shard.parts()) {
        for (const uint32_t block : part.blocks()) {
          for (uint32_t i = 0; i < kBlockElements; ++i, at += sizeof(float)) {
            std::memcpy(&(*held)[block * kBlockElements + i], delta.payload().data() + at, sizeof(float));
          }
        }
      }
    }
    ASSERT_EQ(at, delta.payload().size());
  }
}

TEST_F(ServiceTest, ASubscriberGetsAnAnchorAndThenWhatChanges) {
  ASSERT_TRUE(Push(MakePush(1, 3)).ok());
  v1::SubscribeRequest request;
  request.add_tables()->set_table(dense());
  grpc::ClientContext context;
  auto reader = stub_->Subscribe(&context, request);
  std::vector<float> held(kElements, -1);
  bool anchor = false;
  ReadUntil(reader.get(), 3, &held, &anchor);
  EXPECT_TRUE(anchor);
  ASSERT_TRUE(Push(MakePush(2, 4)).ok());
  ReadUntil(reader.get(), 7, &held, &anchor);
  broadcaster_->Shutdown();
  v1::Delta delta;
  while (reader->Read(&delta)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ServiceTest, SubscribersThatGoAwayAreForgotten) {
  v1::SubscribeRequest request;
  request.add_tables()->set_table(dense());
  for (int i = 0; i < 40; ++i) {  // More than there is room for at a time.
    grpc::ClientContext context;
    auto reader = stub_->Subscribe(&context, request);
    v1::Delta delta;
    if (i % 2 == 0) {
      EXPECT_TRUE(reader->Read(&delta));
    }
    context.TryCancel();
    reader->Finish();
    for (;;) {  // Until the server has heard of it.
      v1::StatusResponse status;
      broadcaster_->FillStatus(&status);
      if (status.subscribers().empty()) break;
      std::this_thread::yield();
    }
  }
  ASSERT_TRUE(Push(MakePush(1, 3)).ok());
  EXPECT_EQ(PullValue(), 3);
}

TEST_F(ServiceTest, ASubscriptionToNothingIsRefused) {
  for (const bool unknown : {false, true}) {
    v1::SubscribeRequest request;
    if (unknown) request.add_tables()->set_table(12345);
    grpc::ClientContext context;
    auto reader = stub_->Subscribe(&context, request);
    v1::Delta delta;
    EXPECT_FALSE(reader->Read(&delta));
    EXPECT_EQ(reader->Finish().error_code(),
              unknown ? grpc::StatusCode::NOT_FOUND : grpc::StatusCode::INVALID_ARGUMENT);
  }
}

// What garbage may end in: never a crash, a silent loss or a code that says nothing.
void ExpectClear(const grpc::Status& status) {
  if (status.ok()) return;  // Bytes that happen to be a message which asks for nothing.
  EXPECT_TRUE(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
              status.error_code() == grpc::StatusCode::FAILED_PRECONDITION ||
              status.error_code() == grpc::StatusCode::NOT_FOUND)
      << status.error_code() << " " << status.error_message();
  EXPECT_FALSE(status.error_message().empty());
}

TEST_F(ServiceTest, RandomBytesEndInAClearErrorOnEveryMethod) {
  const uint64_t seed = 20261121;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 300; ++i) {
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    for (const char* method : {kPush, kPull, kPushPull, kSubscribe}) {
      if (method == kSubscribe && bytes.empty()) continue;
      ExpectClear(RawCall(channel_, method, bytes));
    }
  }
  // EnsureTables is typed: gRPC parses it, and calls what it cannot parse INTERNAL.
  EXPECT_FALSE(RawCall(channel_, kEnsureTables, std::string(50, '\xff')).ok());
  ASSERT_TRUE(Push(MakePush(1, 3)).ok());
  EXPECT_EQ(PullValue(), 3);
}

TEST_F(ServiceTest, DamagedRequestsEndInAClearErrorAndAreNotAppliedInPart) {
  const uint64_t seed = 7;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  v1::PushPullRequest push_pull;
  *push_pull.mutable_push() = MakePush(1, 0);
  *push_pull.mutable_pull() = MakePull();
  push_pull.set_payload(push_pull.push().payload() + push_pull.pull().payload());
  push_pull.mutable_push()->clear_payload();
  push_pull.mutable_pull()->clear_payload();
  v1::SubscribeRequest subscribe;
  subscribe.add_tables()->set_table(dense());
  struct Request {
    const char* method;
    std::string bytes;
    size_t header_bytes;  // All but the payload, which has any numbers it likes.
  };
  const auto request = [](const char* method, const auto& message) {
    const std::string bytes = message.SerializeAsString();
    return Request{method, bytes, bytes.size() - message.payload().size()};
  };
  const std::vector<Request> requests = {request(kPush, MakePush(1, 0)), request(kPull, MakePull()),
                                         request(kPushPull, push_pull)};
  for (const auto& [method, bytes, header_bytes] : requests) {
    for (int i = 0; i < 150; ++i) {
      ExpectClear(RawCall(channel_, method, bytes.substr(0, random() % bytes.size())));
      std::string flipped = bytes;
      flipped[random() % header_bytes] ^= static_cast<char>(1 << (random() % 8));
      ExpectClear(RawCall(channel_, method, flipped));
    }
    EXPECT_EQ(RawCall(channel_, method, bytes.substr(0, bytes.size() - 1)).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(RawCall(channel_, method, bytes + std::string("\x7a\x00", 2)).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << "two payloads";
    EXPECT_EQ(RawCall(channel_, method, "\x78\x01").error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << "a payload that is a number";
  }
  EXPECT_EQ(RawCall(channel_, kSubscribe, subscribe.SerializeAsString() + "\x0a").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(PullValue(), 0) << "every push was of zeros or refused";
}

TEST_F(ServiceTest, AnOversizedMessageIsRefusedAndTheConnectionGoesOn) {
  const std::string bytes(kMessageBytesMax + 1, 'x');
  for (const char* method : {kPush, kPull, kPushPull, kSubscribe, kEnsureTables}) {
    EXPECT_EQ(RawCall(channel_, method, bytes).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << method;
  }
  ASSERT_TRUE(Push(MakePush(1, 3)).ok());
  EXPECT_EQ(PullValue(), 3);
}

// Sends bytes to the port as they are and reads until the server closes, or has nothing to say for a while.
void SendToPort(int port, const std::string& bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_GE(fd, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) break;  // The server has had enough.
    sent += static_cast<size_t>(n);
  }
  shutdown(fd, SHUT_WR);
  char answer[4096];
  while (read(fd, answer, sizeof(answer)) > 0) {
  }
  close(fd);
}

TEST_F(ServiceTest, GarbageOnThePortDoesNotDisturbOthers) {
  const uint64_t seed = 99;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  std::vector<std::string> messages = {"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n",
                                       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + std::string(9, '\xff')};
  for (int i = 0; i < 30; ++i) {
    std::string bytes(random() % 20'000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    messages.push_back((i % 2 == 0 ? "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" : "") + bytes);
  }
  Sequence sequence = 0;
  for (const std::string& message : messages) {
    SendToPort(port_, message);
    ASSERT_TRUE(Push(MakePush(++sequence, 1)).ok());
  }
  EXPECT_EQ(PullValue(), static_cast<float>(messages.size()));
}

TEST_F(ServiceTest, CallsCancelledByTheirClientsLeaveNothingBehind) {
  grpc::GenericStub raw(channel_);
  const grpc::ByteBuffer push = BufferOf(MakePush(1, 0).SerializeAsString());
  const grpc::ByteBuffer pull = BufferOf(MakePull().SerializeAsString());
  constexpr int kCalls = 400;
  std::latch done(kCalls);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<grpc::ByteBuffer> answers(kCalls);
  for (int i = 0; i < kCalls; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    raw.UnaryCall(contexts.back().get(), i % 2 == 0 ? kPush : kPull, grpc::StubOptions(), i % 2 == 0 ? &push : &pull,
                  &answers[i], [&](grpc::Status) { done.count_down(); });
    if (i >= 3) contexts[i - 3]->TryCancel();
  }
  for (auto& context : contexts) context->TryCancel();
  done.wait();
  ASSERT_TRUE(Push(MakePush(2, 5)).ok());
  EXPECT_EQ(PullValue(), 5);
}

TEST_F(ServiceTest, ManyClientsAtOnceAddUp) {
  constexpr int kThreads = 4;
  constexpr int kPushes = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < kPushes; ++i) {
        ASSERT_TRUE(Push(MakePush(static_cast<Sequence>(1 + i * kThreads + t), 1)).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(PullValue(), kThreads * kPushes);
}

TEST(ServiceOfANewServer, SaysThatItOwnsNoShardsYet) {
  SteadyTime time;
  Store::Options options;
  options.time = &time;
  Store store(options);
  Broadcaster broadcaster(&store, 1);
  Exchange exchange(&store, &broadcaster, 1);
  ParameterService service(&store, &broadcaster, &exchange, 1);
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const auto channel = server->InProcessChannel({});
  for (const char* method : {kPush, kPull, kSubscribe, kEnsureTables}) {
    v1::SubscribeRequest subscribe;
    subscribe.add_tables()->set_table(1);
    const std::string bytes = method == kSubscribe ? subscribe.SerializeAsString() : "";
    EXPECT_EQ(RawCall(channel, method, bytes).error_code(), grpc::StatusCode::UNAVAILABLE) << method;
  }
  server->Shutdown();
}

}  // namespace
}  // namespace lodestone::server
