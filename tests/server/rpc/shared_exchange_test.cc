// Memory that a client shares with a stream Exchange, as the client of any other language would see it.
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "common/base/random.h"
#include "common/rpc/channel.h"
#include "common/wire/key_list.h"
#include "common/wire/shared_memory.h"
#include "gmock/gmock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "server/rpc/broadcaster.h"
#include "server/rpc/exchange.h"
#include "server/rpc/parameter_service.h"
#include "server/rpc/shared_values.h"
#include "server/store/store.h"
#include "tests/server/rpc/exchange_tables.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSharedElements = 4000;
constexpr uint32_t kSharedBlockElements = 250;
constexpr uint64_t kDenseBytes = kSharedElements * sizeof(float);
constexpr Key kKeys = 40;
constexpr uint64_t kRowBytes = kKeys * kDim * sizeof(float);
constexpr uint64_t kSharedBytes = 8 << 20;
constexpr uint32_t kSharedMessageBytesMax = 64 << 20;
constexpr uint32_t kOk = 0;
constexpr auto kInvalid = static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT);

std::shared_ptr<SharedMemory> MakeMemory() {
  auto memory = SharedMemory::Make(kSharedBytes);
  LODESTONE_CHECK(memory.ok());
  return *std::move(memory);
}

v1::SharedRange RangeOf(uint64_t offset, uint64_t bytes) {
  v1::SharedRange range;
  range.set_offset(offset);
  range.set_bytes(bytes);
  return range;
}

// How often this process has memory to share mapped, as a client or as a ps.
size_t SharedMappings() {
  size_t mappings = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) mappings += absl::StrContains(line, "lodestone-values");
  return mappings;
}

struct Reply {
  v1::Answer answer;
  std::string payload;
};

// One stream, and memory of its own to share.
class SharingClient {
 public:
  explicit SharingClient(v1::ParameterServer::Stub* stub) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    stream_ = stub->Exchange(&context_);
  }
  ~SharingClient() { context_.TryCancel(); }

  SharedMemory* memory() { return memory_.get(); }
  // Writes to the memory at `at`, counted from behind the head.
  v1::SharedRange Put(uint64_t at, const std::string& bytes) {
    const v1::SharedRange range = Room(at, bytes.size());
    std::memcpy(memory_->data() + range.offset(), bytes.data(), bytes.size());
    return range;
  }
  static v1::SharedRange Room(uint64_t at, uint64_t bytes) { return RangeOf(kSharedMemoryHead + at, bytes); }
  std::string Read(const v1::SharedRange& range) const {
    return std::string(reinterpret_cast<const char*>(memory_->data() + range.offset()), range.bytes());
  }

  // Adds a call to the message to be sent; its id.
  uint64_t Add(v1::Call call, const std::string& payload = "") {
    call.set_id(++last_id_);
    call.set_payload_bytes(payload.size());
    *request_.add_calls() = std::move(call);
    request_.mutable_payload()->append(payload);
    return last_id_;
  }
  // Returns how many calls these were.
  size_t Send() {
    const int calls = request_.calls_size();
    EXPECT_TRUE(stream_->Write(request_));
    request_.Clear();
    return calls;
  }
  // Waits for answers, all of different calls; by id.
  std::map<uint64_t, Reply> Await(size_t count) {
    std::map<uint64_t, Reply> replies;
    while (replies.size() < count) {
      v1::ExchangeResponse response;
      if (!stream_->Read(&response)) {
        ADD_FAILURE() << "the stream ended: " << stream_->Finish().error_message();
        break;
      }
      size_t at = 0;
      for (const v1::Answer& answer : response.answers()) {
        Reply reply{answer, response.payload().substr(at, answer.payload_bytes())};
        at += answer.payload_bytes();
        EXPECT_TRUE(replies.emplace(answer.id(), std::move(reply)).second) << "two answers to call " << answer.id();
      }
      EXPECT_EQ(at, response.payload().size());
    }
    return replies;
  }
  // One call; its answer.
  Reply Ask(v1::Call call, const std::string& payload = "") {
    const uint64_t id = Add(std::move(call), payload);
    Send();
    return Await(1)[id];
  }
  // Offers `memory` with a call that does nothing else.
  v1::Answer::SharedMemory Offer(const SharedMemory& memory) {
    v1::Call call;
    call.mutable_pull();
    *call.mutable_shared_memory() = memory.Offer();
    const v1::Answer answer = Ask(call).answer;
    EXPECT_EQ(answer.code(), kOk) << answer.error();
    EXPECT_TRUE(answer.has_pull()) << "the call itself is done in any case";
    return answer.shared_memory();
  }
  // Leaves without a word to what is under way.
  void Vanish() {
    context_.TryCancel();
    EXPECT_FALSE(stream_->Finish().ok());
  }

 private:
  const std::shared_ptr<SharedMemory> memory_ = MakeMemory();
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::ExchangeRequest, v1::ExchangeResponse>> stream_;
  v1::ExchangeRequest request_;
  uint64_t last_id_ = 0;
};

// A server with two dense tables and an embedding table, all zeros, which add what is pushed to them.
class SharedExchangeFixture : public StoreTest {
 protected:
  void Start(SharedUse use) {
    Make();
    broadcaster_ = std::make_unique<Broadcaster>(store_.get(), 16);
    exchange_ = std::make_unique<Exchange>(store_.get(), broadcaster_.get(), kServerIncarnation, "", nullptr,
                                           [use] { return use; });
    service_ =
        std::make_unique<ParameterService>(store_.get(), broadcaster_.get(), exchange_.get(), kServerIncarnation);
    grpc::ServerBuilder builder;
    ApplyServerSettings(&builder, kSharedMessageBytesMax);
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    stub_ = v1::ParameterServer::NewStub(MakeChannel("127.0.0.1:" + std::to_string(port), kSharedMessageBytesMax));
    auto tables = Ensure({AddingDense("dense", kSharedElements, kSharedBlockElements),
                          AddingDense("other", kSharedElements, kSharedBlockElements), AddingRows("rows", kDim)});
    ASSERT_TRUE(tables.ok()) << tables.status();
    tables_ = *std::move(tables);
    for (Key key = 0; key < kKeys; ++key) rows_.emplace_back(1000 + 3 * key, 0.0f);
  }
  void TearDown() override {
    broadcaster_->Shutdown();
    exchange_->Drain();
    server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(10));
    server_.reset();
  }

  // A client whose memory is shared.
  std::unique_ptr<SharingClient> Sharing() {
    auto client = std::make_unique<SharingClient>(stub_.get());
    EXPECT_EQ(client->Offer(*client->memory()), v1::Answer::ACCEPTED);
    return client;
  }

  TableId dense() const { return tables_.tables(0).id(); }
  TableId other() const { return tables_.tables(1).id(); }
  TableId rows() const { return tables_.tables(2).id(); }

  // RequestPayload that no two places share by a pattern; the sum of two of them is the same in either order.
  static std::string NumbersOf(uint64_t seed, uint64_t bytes) {
    std::vector<float> numbers(bytes / sizeof(float));
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<float>(RandomUniform(seed, i)) - 0.5f;
    }
    return Bytes(numbers);
  }
  static std::string Bytes(const std::vector<float>& numbers) {
    return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
  }
  static std::string Sum(const std::string& a, const std::string& b) {
    std::vector<float> sum = Floats(a);
    const std::vector<float> added = Floats(b);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += added[i];
    return Bytes(sum);
  }

  // Calls without their numbers. Those of a dense table are the same, in the same order, in all of them.
  v1::Call DensePush(Sequence sequence, TableId table) {
    auto push = NewPush(sequence);
    push.AddDense(table, {kSharedElements, kSharedBlockElements}, std::nullopt);
    v1::Call call;
    *call.mutable_push() = push.header;
    return call;
  }
  static v1::Call DensePull(TableId table) {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddDense(table, {kSharedElements, kSharedBlockElements}, std::nullopt);
    v1::Call call;
    *call.mutable_pull() = pull.header;
    return call;
  }
  v1::Call DensePushPull(Sequence sequence, TableId table) {
    v1::Call call;
    *call.mutable_push_pull()->mutable_push() = DensePush(sequence, table).push();
    *call.mutable_push_pull()->mutable_pull() = DensePull(table).pull();
    return call;
  }
  // The keys of rows, in order; with them the parts of `header`.
  template <typename Request>
  std::string AddRows(Request* header) const {
    RequestBuilder<Request> builder(kShards);
    builder.AddRows(rows(), kDim, rows_, false);
    *header->mutable_parts() = builder.header.parts();
    return builder.bytes();
  }
  std::string KeyBytes() const {
    v1::PullRequest unused;
    return AddRows(&unused);
  }
  static void SetList(v1::KeyList::Place place, v1::Call* call) {
    SetName({1, 2, kKeys}, call->mutable_keys());
    call->mutable_keys()->set_place(place);
  }
  v1::Call RowPush(Sequence sequence, v1::KeyList::Place place) {
    v1::Call call;
    *call.mutable_push() = NewPush(sequence).header;
    AddRows(call.mutable_push());
    SetList(place, &call);
    return call;
  }
  v1::Call RowPull(v1::KeyList::Place place) const {
    v1::Call call;
    AddRows(call.mutable_pull());
    SetList(place, &call);
    return call;
  }
  static v1::Call WithValues(v1::Call call, const v1::SharedRange& values) {
    *call.mutable_values() = values;
    return call;
  }
  static v1::Call WithRoom(v1::Call call, const v1::SharedRange& room) {
    *call.mutable_room() = room;
    return call;
  }

  // What a table holds, by a message.
  static std::string Held(SharingClient* client, TableId table) { return client->Ask(DensePull(table)).payload; }
  uint64_t PushesApplied() const {
    v1::StatusResponse status;
    store_->FillStatus(&status);
    return status.server().pushes();
  }

  std::unique_ptr<Broadcaster> broadcaster_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<ParameterService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ParameterServer::Stub> stub_;
  v1::EnsureTablesResponse tables_;
  std::vector<std::pair<Key, float>> rows_;
};

class SharedExchangeTest : public SharedExchangeFixture, public ::testing::WithParamInterface<SharedUse> {
 protected:
  void SetUp() override { Start(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Uses, SharedExchangeTest, ::testing::Values(SharedUse::kCopied, SharedUse::kRead),
                         [](const auto& info) { return info.param == SharedUse::kRead ? "Read" : "Copied"; });

TEST_P(SharedExchangeTest, ADensePushIsThatOfTheSameBytesInAMessage) {
  const auto client = Sharing();
  const std::string first = NumbersOf(1, kDenseBytes), second = NumbersOf(2, kDenseBytes);
  const v1::Answer shared = client->Ask(WithValues(DensePush(1, dense()), client->Put(64, first))).answer;
  EXPECT_EQ(shared.code(), kOk) << shared.error();
  EXPECT_GT(shared.push().shards_size(), 0);
  EXPECT_EQ(Held(client.get(), dense()), first);
  EXPECT_EQ(client->Ask(DensePush(2, other()), first).answer.code(), kOk);

  // The other way round.
  EXPECT_EQ(client->Ask(DensePush(3, dense()), second).answer.code(), kOk);
  EXPECT_EQ(client->Ask(WithValues(DensePush(4, other()), client->Put(128, second))).answer.code(), kOk);
  EXPECT_EQ(Held(client.get(), dense()), Sum(first, second));
  EXPECT_EQ(Held(client.get(), other()), Sum(first, second));
}

TEST_P(SharedExchangeTest, APushSentAgainFromElsewhereInTheMemoryIsADuplicate) {
  const auto client = Sharing();
  const std::string numbers = NumbersOf(3, kDenseBytes);
  for (const bool again : {false, true}) {
    const v1::Answer answer =
        client->Ask(WithValues(DensePush(1, dense()), client->Put(again ? kDenseBytes : 0, numbers))).answer;
    EXPECT_EQ(answer.code(), kOk) << answer.error();
    EXPECT_GT(answer.push().shards_size(), 0);
    for (const auto& result : answer.push().shards()) EXPECT_EQ(result.duplicate(), again);
  }
  EXPECT_EQ(Held(client.get(), dense()), numbers);
}

TEST_P(SharedExchangeTest, APullIntoRoomIsThatOfAMessage) {
  const auto client = Sharing();
  const std::string numbers = NumbersOf(4, kDenseBytes);
  ASSERT_EQ(client->Ask(DensePush(1, dense()), numbers).answer.code(), kOk);
  const Reply told = client->Ask(DensePull(dense()));
  EXPECT_EQ(told.payload, numbers);
  EXPECT_EQ(told.answer.shared_bytes(), 0);

  const std::string around(100, 'x');
  client->Put(1000 - around.size(), around);
  const v1::SharedRange room = client->Put(1000, std::string(kDenseBytes, 'y') + around);  // More than is needed.
  const Reply shared = client->Ask(WithRoom(DensePull(dense()), room));
  EXPECT_EQ(shared.answer.code(), kOk) << shared.answer.error();
  EXPECT_EQ(shared.answer.shared_bytes(), kDenseBytes);
  EXPECT_EQ(shared.payload, "");
  EXPECT_EQ(shared.answer.pull().SerializeAsString(), told.answer.pull().SerializeAsString());
  EXPECT_EQ(client->Read(room), numbers + around);
  EXPECT_EQ(client->Read(client->Room(1000 - around.size(), around.size())), around);
}

TEST_P(SharedExchangeTest, WhereThereIsTooLittleRoomTheValuesComeInTheMessage) {
  const auto client = Sharing();
  const std::string numbers = NumbersOf(5, kDenseBytes);
  ASSERT_EQ(client->Ask(DensePush(1, dense()), numbers).answer.code(), kOk);
  for (const uint64_t bytes : {uint64_t{0}, kDenseBytes - 1}) {
    const std::string before(bytes, 'y');
    const v1::SharedRange room = client->Put(1000, before);
    const Reply reply = client->Ask(WithRoom(DensePull(dense()), room));
    EXPECT_EQ(reply.answer.code(), kOk) << reply.answer.error();
    EXPECT_EQ(reply.answer.shared_bytes(), 0);
    EXPECT_EQ(reply.payload, numbers);
    EXPECT_EQ(client->Read(room), before);
  }
}

TEST_P(SharedExchangeTest, APushPullTakesItsValuesFromTheMemoryAndLeavesTheAnswersThere) {
  const auto client = Sharing();
  const std::string first = NumbersOf(6, kDenseBytes), second = NumbersOf(7, kDenseBytes);
  const v1::SharedRange room = client->Room(1 << 20, kDenseBytes);
  const Reply shared = client->Ask(WithRoom(WithValues(DensePushPull(1, dense()), client->Put(0, first)), room));
  EXPECT_EQ(shared.answer.code(), kOk) << shared.answer.error();
  EXPECT_TRUE(shared.answer.has_push_pull());
  EXPECT_EQ(shared.answer.shared_bytes(), kDenseBytes);
  EXPECT_EQ(shared.payload, "");
  EXPECT_EQ(client->Read(room), first);

  // Only one of the two.
  const Reply from_memory = client->Ask(WithValues(DensePushPull(2, dense()), client->Put(0, second)));
  EXPECT_EQ(from_memory.payload, Sum(first, second));
  client->Put(1 << 20, std::string(kDenseBytes, 'y'));
  const Reply into_memory = client->Ask(WithRoom(DensePushPull(3, other()), room), first);
  EXPECT_EQ(into_memory.answer.shared_bytes(), kDenseBytes);
  EXPECT_EQ(client->Read(room), first);
  const Reply told = client->Ask(DensePushPull(4, other()), second);
  EXPECT_EQ(told.payload, from_memory.payload);
}

TEST_P(SharedExchangeTest, RowsWhoseKeysAreAListArePushedAndPulledByTheMemory) {
  const auto client = Sharing();
  const std::string first = NumbersOf(8, kRowBytes), second = NumbersOf(9, kRowBytes);
  // In one message: the second refers to what the first brings.
  client->Add(WithValues(RowPush(1, v1::KeyList::FIRST), client->Put(0, first)), KeyBytes());
  client->Add(WithValues(RowPush(2, v1::KeyList::REMEMBERED), client->Put(kRowBytes, second)));
  for (const auto& [id, reply] : client->Await(client->Send())) {
    EXPECT_EQ(reply.answer.code(), kOk) << reply.answer.error();
    EXPECT_EQ(reply.answer.keys(), v1::Answer::REMEMBERED);
  }
  const v1::SharedRange room = client->Room(1 << 20, kRowBytes);
  const Reply shared = client->Ask(WithRoom(RowPull(v1::KeyList::REMEMBERED), room));
  EXPECT_EQ(shared.answer.shared_bytes(), kRowBytes) << shared.answer.error();
  EXPECT_EQ(shared.payload, "");
  EXPECT_EQ(client->Read(room), Sum(first, second));
  // Room needs no list.
  EXPECT_EQ(client->Ask(WithRoom(RowPull(v1::KeyList::IN_PARTS), room), KeyBytes()).answer.shared_bytes(), kRowBytes);
  EXPECT_EQ(client->Ask(RowPull(v1::KeyList::REMEMBERED)).payload, Sum(first, second));

  // A stream that does not remember the keys does nothing with the values.
  const auto stranger = Sharing();
  const v1::SharedRange values = stranger->Put(0, first);
  const v1::Answer forgotten = stranger->Ask(WithValues(RowPush(3, v1::KeyList::REMEMBERED), values)).answer;
  EXPECT_EQ(forgotten.code(), static_cast<uint32_t>(grpc::StatusCode::FAILED_PRECONDITION));
  EXPECT_EQ(forgotten.keys(), v1::Answer::FORGOTTEN);
  EXPECT_EQ(PushesApplied(), 2);
  const v1::Answer sent = stranger->Ask(WithValues(RowPush(3, v1::KeyList::FIRST), values), KeyBytes()).answer;
  EXPECT_EQ(sent.code(), kOk) << sent.error();
  for (const auto& result : sent.push().shards()) EXPECT_FALSE(result.duplicate());
}

TEST_P(SharedExchangeTest, ACallThatContradictsItselfFailsAloneAndTheStreamGoesOn) {
  const auto client = Sharing();
  const std::string numbers = NumbersOf(10, kDenseBytes);
  const v1::SharedRange good = client->Put(0, numbers);
  const v1::SharedRange room = client->Room(1 << 20, kDenseBytes);
  Sequence sequence = 0;
  std::set<uint64_t> good_ids;
  const auto add_good = [&] {
    good_ids.insert(client->Add(WithValues(DensePush(++sequence, dense()), good)));
    good_ids.insert(client->Add(WithRoom(DensePull(other()), room)));
  };
  for (const v1::SharedRange& bad : {
           RangeOf(0, kDenseBytes),
           RangeOf(kSharedMemoryHead - 1, kDenseBytes),
           RangeOf(kSharedBytes - kDenseBytes + 1, kDenseBytes),
           RangeOf(kSharedBytes, kDenseBytes),
           RangeOf(UINT64_MAX - kDenseBytes + 1, kDenseBytes),
           RangeOf(UINT64_MAX, kDenseBytes),
           RangeOf(kSharedMemoryHead, UINT64_MAX),
           v1::SharedRange(),
       }) {
    add_good();
    client->Add(WithValues(DensePush(++sequence, dense()), bad));
    client->Add(WithRoom(DensePull(dense()), bad));
    client->Add(WithRoom(WithValues(DensePushPull(++sequence, dense()), good), bad));
    client->Add(WithRoom(WithValues(DensePushPull(++sequence, dense()), bad), room));
  }
  // Fewer or more bytes than the parts have.
  for (const uint64_t bytes : {uint64_t{0}, kDenseBytes - sizeof(float), kDenseBytes + sizeof(float)}) {
    client->Add(WithValues(DensePush(++sequence, dense()), client->Room(0, bytes)));
  }
  client->Add(WithValues(DensePush(++sequence, dense()), good), numbers);  // In the message as well.
  client->Add(WithValues(DensePull(dense()), good));
  v1::Call rows = WithValues(RowPush(++sequence, v1::KeyList::IN_PARTS), client->Room(0, kRowBytes));
  client->Add(rows);
  rows.clear_keys();
  client->Add(rows);
  v1::Call subscribe = WithValues(v1::Call(), good);
  subscribe.mutable_subscribe()->add_tables()->set_table(dense());
  client->Add(subscribe);
  add_good();
  for (const auto& [id, reply] : client->Await(client->Send())) {
    if (good_ids.contains(id)) {
      EXPECT_EQ(reply.answer.code(), kOk) << reply.answer.error();
    } else {
      EXPECT_EQ(reply.answer.code(), kInvalid) << "call " << id;
      EXPECT_NE(reply.answer.error(), "");
    }
  }
  EXPECT_EQ(PushesApplied(), 9);
  EXPECT_EQ(client->Ask(WithValues(DensePush(++sequence, other()), good)).answer.code(), kOk);
  EXPECT_EQ(Held(client.get(), other()), numbers);
}

TEST_P(SharedExchangeTest, AGradientThatIsNotFiniteIsRefusedAndNothingOfItsPushIsApplied) {
  const auto client = Sharing();
  const std::string numbers = NumbersOf(11, kDenseBytes);
  std::vector<float> spoilt = Floats(numbers);
  spoilt.back() = std::nanf("");
  const v1::Answer refused = client->Ask(WithValues(DensePush(1, dense()), client->Put(0, Bytes(spoilt)))).answer;
  EXPECT_EQ(refused.code(), kInvalid);
  EXPECT_THAT(refused.error(), HasSubstr("nan"));
  EXPECT_EQ(PushesApplied(), 0);
  EXPECT_EQ(Held(client.get(), dense()), std::string(kDenseBytes, '\0'));
  // Nor does it count as having come.
  const v1::Answer answer = client->Ask(WithValues(DensePush(1, dense()), client->Put(0, numbers))).answer;
  EXPECT_EQ(answer.code(), kOk) << answer.error();
  for (const auto& result : answer.push().shards()) EXPECT_FALSE(result.duplicate());
  EXPECT_EQ(Held(client.get(), dense()), numbers);
}

TEST_P(SharedExchangeTest, ASecondOfferIsRefusedAndTheFirstMemoryStays) {
  const auto client = Sharing();
  const std::shared_ptr<SharedMemory> second = MakeMemory();
  EXPECT_EQ(client->Offer(*second), v1::Answer::REFUSED);
  const std::string numbers = NumbersOf(12, kDenseBytes);
  const v1::SharedRange values = client->Put(0, numbers);
  const v1::SharedRange room = client->Room(1 << 20, kDenseBytes);
  const Reply reply = client->Ask(WithRoom(WithValues(DensePushPull(1, dense()), values), room));
  EXPECT_EQ(reply.answer.shared_bytes(), kDenseBytes) << reply.answer.error();
  EXPECT_EQ(client->Read(room), numbers);
}

TEST_P(SharedExchangeTest, TheOutcomeOfAnOfferIsToldThoughItsCallFails) {
  SharingClient client(stub_.get());
  v1::Call call = DensePush(1, dense());
  *call.mutable_shared_memory() = client.memory()->Offer();
  v1::Answer answer = client.Ask(call, "too short").answer;
  EXPECT_EQ(answer.code(), kInvalid);
  EXPECT_EQ(answer.shared_memory(), v1::Answer::ACCEPTED);
  const std::string numbers = NumbersOf(13, kDenseBytes);
  answer = client.Ask(WithValues(DensePush(1, dense()), client.Put(0, numbers))).answer;
  EXPECT_EQ(answer.code(), kOk) << answer.error();
  EXPECT_EQ(answer.shared_memory(), v1::Answer::NO_OFFER);
}

TEST_P(SharedExchangeTest, ManyCallsAtATimeEachHaveTheirOwnRanges) {
  constexpr int kDepth = 200;
  static_assert(2 * kDepth * kDenseBytes <= kSharedBytes - kSharedMemoryHead);
  const auto client = Sharing();
  // Integers, whose sum is exact in any order.
  std::vector<float> sum(kSharedElements);
  for (int i = 0; i < kDepth; ++i) {
    std::vector<float> numbers(kSharedElements);
    for (uint64_t e = 0; e < kSharedElements; ++e) {
      numbers[e] = static_cast<float>(RandomBits(14 + i, e) % 1000);
      sum[e] += numbers[e];
    }
    client->Add(WithValues(DensePush(1 + i, dense()), client->Put(i * kDenseBytes, Bytes(numbers))));
    client->Add(WithRoom(DensePull(dense()), client->Room((kDepth + i) * kDenseBytes, kDenseBytes)));
    client->Send();
  }
  for (const auto& [id, reply] : client->Await(2 * kDepth)) {
    EXPECT_EQ(reply.answer.code(), kOk) << reply.answer.error();
    EXPECT_EQ(reply.answer.shared_bytes(), reply.answer.has_pull() ? kDenseBytes : 0);
    EXPECT_EQ(reply.payload, "");
  }
  EXPECT_EQ(Floats(Held(client.get(), dense())), sum);

  // Nobody changes anything any more: all that are asked for at once are the same.
  for (int i = 0; i < 2 * kDepth; ++i) {
    const v1::SharedRange room = client->Put(i * kDenseBytes, std::string(kDenseBytes, 'x'));
    client->Add(WithRoom(DensePull(dense()), room));
  }
  EXPECT_EQ(client->Await(client->Send()).size(), 2 * kDepth);
  for (int i = 0; i < 2 * kDepth; ++i) {
    ASSERT_EQ(Floats(client->Read(client->Room(i * kDenseBytes, kDenseBytes))), sum) << i;
  }
}

TEST_P(SharedExchangeTest, ClientsThatVanishWithTheirMemoryDisturbNobodyAndLeaveNothingBehind) {
  constexpr int kVanish = 20, kCalls = 8;
  const auto client = Sharing();
  const v1::SharedRange room = client->Room(1 << 20, kDenseBytes);
  Sequence sequence = 0;
  std::string held(kDenseBytes, '\0');
  for (int i = 0; i < kVanish; ++i) {
    auto vanishing = Sharing();
    for (int call = 0; call < kCalls; ++call) {
      const v1::SharedRange values = vanishing->Put(call * kDenseBytes, NumbersOf(sequence, kDenseBytes));
      vanishing->Add(WithValues(DensePush(++sequence, dense()), values));
      vanishing->Add(WithRoom(DensePull(other()), vanishing->Room((kCalls + call) * kDenseBytes, kDenseBytes)));
    }
    vanishing->Send();
    vanishing->Vanish();
    vanishing.reset();

    const std::string numbers = NumbersOf(1000 + i, kDenseBytes);
    held = Sum(held, numbers);
    const v1::SharedRange values = client->Put(0, numbers);
    const Reply reply = client->Ask(WithRoom(WithValues(DensePushPull(++sequence, other()), values), room));
    ASSERT_EQ(reply.answer.shared_bytes(), kDenseBytes) << reply.answer.error();
    ASSERT_EQ(client->Read(room), held);
  }
  // The ps notices when it comes to it. What remains is this client's memory, at either end.
  while (SharedMappings() > 2) std::this_thread::yield();
  EXPECT_EQ(SharedMappings(), 2);
}

using RefusingExchangeTest = SharedExchangeFixture;

TEST_F(RefusingExchangeTest, AnOfferIsRefusedAndEverythingGoesByMessage) {
  Start(SharedUse::kRefused);
  SharingClient client(stub_.get());
  EXPECT_EQ(client.Offer(*client.memory()), v1::Answer::REFUSED);
  const std::string numbers = NumbersOf(15, kDenseBytes);
  const v1::SharedRange values = client.Put(0, numbers);
  const v1::Answer refused = client.Ask(WithValues(DensePush(1, dense()), values)).answer;
  EXPECT_EQ(refused.code(), kInvalid);
  EXPECT_THAT(refused.error(), HasSubstr("this stream shares none"));
  EXPECT_EQ(client.Ask(WithRoom(DensePull(dense()), values)).answer.code(), kInvalid);
  EXPECT_EQ(PushesApplied(), 0);

  // With the offer once more, which changes nothing.
  v1::Call push = DensePush(1, dense());
  *push.mutable_shared_memory() = client.memory()->Offer();
  const v1::Answer answer = client.Ask(push, numbers).answer;
  EXPECT_EQ(answer.code(), kOk) << answer.error();
  EXPECT_EQ(answer.shared_memory(), v1::Answer::REFUSED);
  EXPECT_EQ(Held(&client, dense()), numbers);
}

}  // namespace
}  // namespace lodestone::server
