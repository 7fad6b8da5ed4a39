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

#include "gtest/gtest.h"
#include "server/rpc/call_memory.h"
#include "tests/server/rpc/busy_executor.h"
#include "tests/server/rpc/exchange_fixture.h"

namespace lodestone::server {
namespace {

class ExchangeMemoryTest : public ExchangeTest {
 protected:
  // The executors, busy until Release.
  class BusyExecutors {
   public:
    explicit BusyExecutors(Store* store) {
      Executors& executors = store->shards().executors();
      for (size_t e = 0; e < executors.size(); ++e) busy_.push_back(std::make_unique<BusyExecutor>(&executors[e]));
    }
    void Release() {
      for (const auto& busy : busy_) busy->Release();
    }

   private:
    std::vector<std::unique_ptr<BusyExecutor>> busy_;
  };
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
  std::thread writer([&] {
    v1::ExchangeRequest request;
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddDense(dense(), {kElements, kBlockElements}, std::nullopt);
    pull.header.set_worker_incarnation(kWorker);
    Add(pull, &request, &v1::Call::mutable_pull);
    while (memory_.waiting() == 0 && written < kPullsMax && stream->Write(request)) ++written;
    stream->WritesDone();
  });
  while (memory_.waiting() == 0) std::this_thread::yield();
  EXPECT_LE(memory_.bytes(), memory_.bytes_max() + 4 * answer_bytes);
  for (v1::ExchangeResponse response; stream->Read(&response);) answers += response.answers_size();
  writer.join();
  EXPECT_EQ(answers, written);
  EXPECT_TRUE(stream->Finish().ok());
  while (memory_.bytes() > 0) std::this_thread::yield();
}

}  // namespace
}  // namespace lodestone::server
