// The memory for calls, as streams Exchange share it.
#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/limits.h"
#include "gtest/gtest.h"
#include "server/rpc/call_memory.h"
#include "tests/server/rpc/exchange_fixture.h"
#include "tests/server/store/busy_executor.h"

namespace lodestone::server {
namespace {

class ExchangeMemoryTest : public ExchangeTest {
 protected:
  // Keys whose rows, pulled twice, take more than half of the memory.
  static constexpr size_t kKeys = 8000;
  // Elements whose bytes are much more than gRPC takes of what is not read.
  static constexpr uint64_t kLargeElements = 8 << 20;

  // A message of two pulls, each of the rows of kKeys keys.
  v1::ExchangeRequest TwoPulls() {
    std::vector<Key> keys(kKeys);
    std::iota(keys.begin(), keys.end(), Key{1});
    v1::ExchangeRequest request;
    for (int i = 0; i < 2; ++i) AddListed(keys, std::nullopt, 0, v1::KeyList::IN_PARTS, &request);
    return request;
  }
  // A push of a row with a pull of the dense table.
  void AddPushPull(Sequence sequence, v1::ExchangeRequest* request) {
    auto push = NewPush(sequence);
    push.AddRows(rows(), kDim, {{7, 1.0f}}, true);
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddDense(dense(), {kElements, kBlockElements}, std::nullopt);
    RequestBuilder<v1::PushPullRequest> both(kShards);
    *both.header.mutable_push() = push.header;
    *both.header.mutable_pull() = pull.header;
    both.bytes() = push.bytes();
    Add(both, request, &v1::Call::mutable_push_pull);
  }
  uint64_t pushes() const {
    v1::StatusResponse status;
    store_->FillStatus(&status);
    return status.server().pushes();
  }
  // Streams, each of which asks for a table of kLargeElements, and reads nothing.
  struct Reader {
    grpc::ClientContext context;
    std::unique_ptr<Stream> stream;
  };
  std::vector<std::unique_ptr<Reader>> AskForLarge(size_t streams) {
    auto table = Ensure({AddingDense("large", kLargeElements, kLargeElements / kShards)});
    EXPECT_TRUE(table.ok()) << table.status();
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddDense(table->tables(0).id(), {kLargeElements, kLargeElements / kShards}, std::nullopt);
    v1::ExchangeRequest request;
    Add(pull, &request, &v1::Call::mutable_pull);
    std::vector<std::unique_ptr<Reader>> readers;
    for (size_t i = 0; i < streams; ++i) {
      readers.push_back(std::make_unique<Reader>());
      readers.back()->context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
      readers.back()->stream = stub_->Exchange(&readers.back()->context);
      EXPECT_TRUE(readers.back()->stream->Write(request));
    }
    return readers;
  }
  // Whether its answer comes; not if the stream ends before.
  static bool HasAnswer(Reader* reader) {
    v1::ExchangeResponse response;
    if (!reader->stream->Read(&response)) return false;
    EXPECT_EQ(response.payload().size(), kLargeElements * sizeof(float));
    return true;
  }
  // Until so many large answers wait, a minute at most.
  void AwaitLarge(size_t waiting) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (memory_.large_answers().waiting() < waiting && std::chrono::steady_clock::now() < until) {
      std::this_thread::yield();
    }
    EXPECT_GE(memory_.large_answers().waiting(), waiting);
  }
  void AwaitHeld(uint64_t bytes) const {
    while (memory_.bytes() != bytes) std::this_thread::yield();
  }
};

TEST_F(ExchangeMemoryTest, StreamsShareTheMemoryForCallsAndEachHasItsTurn) {
  constexpr int kStreams = 64, kPushes = 40;
  std::vector<v1::ExchangeRequest> pushes(kPushes);
  for (int p = 0; p < kPushes; ++p) AddPush(1 + p, 1.0f, &pushes[p]);
  const uint64_t message_bytes = pushes[0].ByteSizeLong();
  ASSERT_GT(kStreams * kPushes * message_bytes, 2 * memory_.bytes_max());

  for (int s = 0; s < kStreams; ++s) {
    ASSERT_TRUE(
        Ensure({AddingDense("dense", kElements, kBlockElements), AddingRows("rows", kDim)}, kWorker + 1 + s).ok());
  }
  BusyExecutors busy(store_.get());
  std::vector<std::thread> threads;
  std::atomic<int> finished{0};
  for (int s = 0; s < kStreams; ++s) {
    threads.emplace_back([&, s] {
      grpc::ClientContext context;
      const auto stream = stub_->Exchange(&context);
      std::thread reader([&] {
        v1::ExchangeResponse response;
        for (int answers = 0; answers < kPushes && stream->Read(&response);) {
          for (const v1::Answer& answer : response.answers()) EXPECT_EQ(answer.code(), 0u) << answer.error();
          answers += response.answers_size();
          if (answers == kPushes) ++finished;
        }
      });
      for (v1::ExchangeRequest push : pushes) {
        push.mutable_calls(0)->mutable_push()->set_worker_incarnation(kWorker + 1 + s);
        if (!stream->Write(push)) break;
      }
      reader.join();
      stream->WritesDone();
      EXPECT_TRUE(stream->Finish().ok());
    });
  }
  // The memory takes less than half of all, so some streams may have sent all of theirs; the others wait.
  while (memory_.waiting() < kStreams / 3) std::this_thread::yield();
  EXPECT_LE(memory_.bytes(), memory_.bytes_max() + kStreams * message_bytes);
  busy.Release();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(finished, kStreams);
  while (memory_.bytes() > 0) std::this_thread::yield();
  EXPECT_EQ(memory_.waiting(), 0u);
}

TEST_F(ExchangeMemoryTest, PullsThatNobodyReadsWaitForTheMemory) {
  constexpr int kPullsMax = 1'000'000;
  const uint64_t answer_bytes = kElements * sizeof(float);
  grpc::ClientContext context;
  const auto stream = stub_->Exchange(&context);
  int written = 0, answers = 0;
  // A wait may end as soon as it began, because sockets take more at times: only this thread's having seen one ends it.
  std::atomic<bool> seen{false};
  std::thread writer([&] {
    v1::ExchangeRequest request;
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddDense(dense(), {kElements, kBlockElements}, std::nullopt);
    pull.header.set_worker_incarnation(kWorker);
    Add(pull, &request, &v1::Call::mutable_pull);
    while (!seen && written < kPullsMax && stream->Write(request)) ++written;
    stream->WritesDone();
  });
  while (memory_.waiting() == 0) std::this_thread::yield();
  seen = true;
  EXPECT_LE(memory_.bytes(), memory_.bytes_max() + 4 * answer_bytes);
  for (v1::ExchangeResponse response; stream->Read(&response);) answers += response.answers_size();
  writer.join();
  EXPECT_EQ(answers, written);
  EXPECT_TRUE(stream->Finish().ok());
  while (memory_.bytes() > 0) std::this_thread::yield();
}

// Regression: the first answer of each stream had room, however long: forty streams of 256 MiB took 10 GiB.
TEST_F(ExchangeMemoryTest, OfLargeAnswersThatNobodyReadsOneIsHeld) {
  constexpr size_t kStreams = 8;
  const auto readers = AskForLarge(kStreams);
  AwaitLarge(kStreams - 1);
  const uint64_t answer_bytes = kLargeElements * sizeof(float);
  EXPECT_GE(memory_.large_answers().bytes(), answer_bytes);
  EXPECT_LT(memory_.large_answers().bytes(), 2 * answer_bytes);
  v1::ExchangeRequest push;
  AddPush(1, 1.0f, &push);
  AddPull(&push);
  EXPECT_EQ(Ask(push).at(1).code(), 0u) << "what is small goes on";
  std::vector<std::thread> threads;
  std::atomic<size_t> had{0};
  for (const auto& reader : readers) threads.emplace_back([&] { had += HasAnswer(reader.get()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(had, kStreams);
  for (const auto& reader : readers) {
    reader->stream->WritesDone();
    EXPECT_TRUE(reader->stream->Finish().ok());
  }
  AwaitHeld(0);
  EXPECT_EQ(memory_.large_answers().bytes(), 0u);
}

TEST_F(ExchangeMemoryTest, AClientThatDoesNotReadLosesItsStreamWhileOthersWait) {
  const auto readers = AskForLarge(2);
  AwaitLarge(1);
  exchange_->Tick();
  EXPECT_EQ(memory_.large_answers().waiting(), 1u);
  // Ends by the streams' deadlines if this does nothing.
  while (memory_.large_answers().waiting() > 0) {
    clock_.AdvanceMs(1000);
    exchange_->Tick();
    std::this_thread::yield();
  }
  // Which of them was first is unknown. The other one has its answer.
  std::vector<std::thread> threads;
  std::atomic<size_t> had{0};
  for (const auto& reader : readers) threads.emplace_back([&] { had += HasAnswer(reader.get()); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(had, 1u);
  for (const auto& reader : readers) reader->context.TryCancel();
  AwaitHeld(0);
  EXPECT_EQ(memory_.large_answers().bytes(), 0u);
}

// Regression: a stream that waited for its turn and went on without it stayed in the line, once for each message.
TEST_F(ExchangeMemoryTest, AStreamWaitsInOnePlaceHoweverManyMessagesItIsReadWithout) {
  memory_.Take(memory_.bytes_max());  // By others.
  memory_.Await(1, [] {});
  memory_.Settle();
  for (Sequence sequence = 1; sequence <= 1000; ++sequence) {
    v1::ExchangeRequest push;
    AddPush(sequence, 1.0f, &push);
    ASSERT_EQ(Ask(push).at(1).code(), 0u);
    ASSERT_LE(memory_.waiting(), 2u);
  }
  memory_.Give(memory_.bytes_max());
  AwaitHeld(1);
  EXPECT_EQ(memory_.waiting(), 0u);
}

// Regression: whether a pull's answer is the only one of its stream was asked once, when the pull came.
TEST_F(ExchangeMemoryTest, APullThatWaitsIsRunOnceItsStreamHasNoOtherAnswer) {
  memory_.Take(memory_.bytes_max());  // By others, who do not read.
  const v1::ExchangeRequest request = TwoPulls();
  std::vector<std::thread> clients;
  for (int s = 0; s < 3; ++s) {
    clients.emplace_back([&] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
      const auto stream = stub_->Exchange(&context);
      EXPECT_TRUE(stream->Write(request));
      stream->WritesDone();
      int answers = 0;
      for (v1::ExchangeResponse response; stream->Read(&response);) {
        for (const v1::Answer& answer : response.answers()) EXPECT_TRUE(answer.has_pull()) << answer.error();
        answers += response.answers_size();
      }
      EXPECT_EQ(answers, 2);
      EXPECT_TRUE(stream->Finish().ok());
    });
  }
  for (std::thread& client : clients) client.join();
  AwaitHeld(memory_.bytes_max());
}

// Regression: it waited for room, with the keys that it had brought.
TEST_F(ExchangeMemoryTest, APullThatWaitsEndsWithItsStream) {
  memory_.Take(memory_.bytes_max());  // By others.
  BusyExecutors busy(store_.get());
  ASSERT_TRUE(stream_->Write(TwoPulls()));
  const uint64_t request_bytes = 2 * kKeys * sizeof(Key), answer_bytes = kKeys * kDim * sizeof(float);
  AwaitHeld(memory_.bytes_max() + request_bytes + answer_bytes);  // The first one's.
  context_->TryCancel();
  AwaitHeld(memory_.bytes_max() + request_bytes / 2 + answer_bytes);
  busy.Release();
  AwaitHeld(memory_.bytes_max());
}

// Regression: what the last message had taken was kept free for the next.
TEST_F(ExchangeMemoryTest, AStreamThatIsSilentHoldsNothing) {
  std::vector<Key> keys(5000);
  std::iota(keys.begin(), keys.end(), Key{1});
  v1::ExchangeRequest push;
  AddListed(keys, 1.0f, 1, v1::KeyList::IN_PARTS, &push);
  ASSERT_GT(push.ByteSizeLong(), 100'000u);
  EXPECT_EQ(Ask(push).at(1).code(), 0u);
  AwaitHeld(0);
}

// Regression: only pulls without a push waited.
TEST_F(ExchangeMemoryTest, PushesWithPullsWaitForRoomForTheirAnswers) {
  constexpr int kCalls = 300;
  memory_.Take(memory_.bytes_max());  // By others.
  BusyExecutors busy(store_.get());
  v1::ExchangeRequest request;
  for (Sequence sequence = 1; sequence <= kCalls; ++sequence) AddPushPull(sequence, &request);
  ASSERT_TRUE(stream_->Write(request));
  AwaitHeld(memory_.bytes_max() + request.payload().size());
  busy.Release();
  int answers = 0;
  for (v1::ExchangeResponse response; answers < kCalls && stream_->Read(&response);) {
    for (const v1::Answer& answer : response.answers()) EXPECT_TRUE(answer.has_push_pull()) << answer.error();
    answers += response.answers_size();
  }
  EXPECT_EQ(answers, kCalls);
  EXPECT_EQ(pushes(), kCalls);
  AwaitHeld(memory_.bytes_max());
}

// A pull that has room may wait for it, by the step that it is of.
TEST_F(ExchangeMemoryTest, APushDoesNotWaitForTheRoomOfItsPull) {
  memory_.Take(memory_.bytes_max());  // By others.
  BusyExecutors busy(store_.get());
  v1::ExchangeRequest request;
  for (Sequence sequence = 1; sequence <= 2; ++sequence) AddPushPull(sequence, &request);
  ASSERT_TRUE(stream_->Write(request));
  AwaitHeld(memory_.bytes_max() + request.payload().size());
  context_->TryCancel();
  busy.Release();
  AwaitHeld(memory_.bytes_max());
  EXPECT_EQ(pushes(), 2u);
}

// A table with a large block on each shard, and one with one such block, of which broadcasts have room for a part; by
// Subscribe, or by Exchange.
class UnreadBroadcastTest : public ExchangeMemoryTest, public ::testing::WithParamInterface<bool> {
 protected:
  static constexpr uint64_t kBlock = kLargeElements / kShards;

  UnreadBroadcastTest() { options_.memory_max_bytes = (kLargeElements + kBlock) * sizeof(float) + (8 << 20); }

  v1::SubscribeRequest MakeLarge(const std::string& name, uint64_t elements) {
    const auto table = Ensure({AddingDense(name, elements, kBlock)});
    EXPECT_TRUE(table.ok()) << table.status();
    v1::SubscribeRequest request;
    request.add_tables()->set_table(table->tables(0).id());
    return request;
  }
  // Of the kind that the parameter says.
  struct Subscription {
    grpc::ClientContext context;
    std::unique_ptr<Stream> exchange;
    std::unique_ptr<grpc::ClientReader<v1::Delta>> deltas;
  };
  std::unique_ptr<Subscription> Subscribe(const v1::SubscribeRequest& request) {
    auto made = std::make_unique<Subscription>();
    made->context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    if (GetParam()) {
      made->exchange = stub_->Exchange(&made->context);
      v1::ExchangeRequest call;
      *call.add_calls()->mutable_subscribe() = request;
      EXPECT_TRUE(made->exchange->Write(call));
    } else {
      made->deltas = stub_->Subscribe(&made->context, request);
    }
    return made;
  }
  // How many subscribers have been sent anything.
  int Sent() const {
    v1::StatusResponse status;
    broadcaster_->FillStatus(&status);
    int sent = 0;
    for (const auto& subscriber : status.subscribers()) sent += subscriber.deltas() > 0;
    return sent;
  }
  // Reads until so many bytes have come, or the stream ends; returns how many came.
  static size_t ReadBytes(Subscription* from, size_t bytes) {
    size_t had = 0;
    v1::ExchangeResponse response;
    v1::Delta delta;
    while (had < bytes && (GetParam() ? from->exchange->Read(&response) : from->deltas->Read(&delta))) {
      had += GetParam() ? response.payload().size() : delta.payload().size();
    }
    return had;
  }
};

TEST_P(UnreadBroadcastTest, AClientThatDoesNotReadLosesItsStreamWhileOthersWait) {
  const auto large = MakeLarge("large", kLargeElements), small = MakeLarge("small", kBlock);
  const MemoryLine& line = store_->deltas().memory()->large();
  ASSERT_LT(line.bytes_max(), kBlock * sizeof(float));
  const auto unread = Subscribe(large);
  while (Sent() < 1) std::this_thread::yield();
  const auto read = Subscribe(small);
  std::atomic<bool> complete{false};
  std::thread reader([&] {
    EXPECT_EQ(ReadBytes(read.get(), kBlock * sizeof(float)), kBlock * sizeof(float));
    complete = true;
  });
  while (!complete) {
    std::this_thread::yield();
    if (line.waiting() != 1 || Sent() != 1) continue;  // The one that waits is the other.
    time_.AdvanceMs(1000);
    broadcaster_->Tick();
  }
  reader.join();
  EXPECT_LT(ReadBytes(unread.get(), kLargeElements * sizeof(float)), kLargeElements * sizeof(float));
  EXPECT_EQ((GetParam() ? unread->exchange->Finish() : unread->deltas->Finish()).error_code(),
            grpc::StatusCode::CANCELLED);
  read->context.TryCancel();
}

INSTANTIATE_TEST_SUITE_P(ByExchangeOrSubscribe, UnreadBroadcastTest, ::testing::Bool());

}  // namespace
}  // namespace lodestone::server
