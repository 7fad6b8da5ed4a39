// Which calls of a connection go together in a message: a server that answers when it is told counts them.
#include "worker/rpc/connection.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "common/rpc/channel.h"
#include "common/wire/message.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

constexpr uint32_t kMessageBytesMax = 1 << 20;
constexpr int64_t kNoTimeoutMs = 600'000;
constexpr int kRoundsMax = 1000;

// A ps's end of one stream Exchange. Answers what has come when it is told to, all in one message.
class Ps final : public grpc::CallbackGenericService {
 public:
  Ps() {
    grpc::ServerBuilder builder;
    ApplyServerSettings(&builder, kMessageBytesMax);
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    LODESTONE_CHECK(server_ != nullptr);
  }
  ~Ps() override { server_->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Waits until `calls` have come altogether, and gives how many there were in each message so far.
  std::vector<int> Await(int calls) {
    MutexLock lock(&mu_);
    while (calls_ < calls) changed_.Wait(&mu_);
    return in_messages_;
  }

  // The sequences of the pushes that have come, in order.
  std::vector<Sequence> sequences() {
    MutexLock lock(&mu_);
    return sequences_;
  }

  // From now on messages are read one at a time, when it is told to. Before the first stream.
  void ReadByHand() { by_hand_ = true; }
  void ReadOne() {
    MutexLock lock(&mu_);
    while (reactor_ == nullptr || !may_read_) changed_.Wait(&mu_);
    may_read_ = false;
    reactor_->Read();
  }
  // Answers the call that came last, and leaves the others unanswered.
  void AnswerNewest() {
    uint64_t id = 0;
    {
      MutexLock lock(&mu_);
      id = unanswered_.back();
      unanswered_ = {id};
    }
    AnswerAll();
  }
  // `strangers`: answers to calls that nobody has made, after the others.
  void AnswerAll(int strangers = 0) {
    MutexLock lock(&mu_);
    while (writing_) changed_.Wait(&mu_);
    writing_ = true;
    for (int i = 0; i < strangers; ++i) unanswered_.push_back(UINT64_MAX - i);
    v1::ExchangeResponse header;
    for (const uint64_t id : unanswered_) {
      v1::Answer* const answer = header.add_answers();
      answer->set_id(id);
      answer->mutable_push();
    }
    unanswered_.clear();
    answers_ = BuildMessage(header, {});
    reactor_->StartWrite(&answers_);
  }

 private:
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    explicit Reactor(Ps* ps) : ps_(ps) {
      if (!ps->by_hand_) Read();
    }
    void Read() {
      message_.Clear();
      StartRead(&message_);
    }
    void OnReadDone(bool ok) override {
      if (!ok) return End();
      v1::ExchangeRequest header;
      Payload payload;
      LODESTONE_CHECK(ParseMessage(message_, &header, &payload).ok());
      {
        MutexLock lock(&ps_->mu_);
        ps_->in_messages_.push_back(header.calls_size());
        ps_->calls_ += header.calls_size();
        for (const v1::Call& call : header.calls()) {
          ps_->unanswered_.push_back(call.id());
          ps_->sequences_.push_back(call.push().sequence());
        }
        ps_->may_read_ = ps_->by_hand_;
        ps_->changed_.NotifyAll();
      }
      if (!ps_->by_hand_) Read();
    }
    void OnWriteDone(bool) override {
      MutexLock lock(&ps_->mu_);
      ps_->writing_ = false;
      ps_->changed_.NotifyAll();
    }
    void OnCancel() override {
      MutexLock lock(&ps_->mu_);
      if (ps_->may_read_) End();  // No read is under way that would fail.
    }
    void OnDone() override { delete this; }

   private:
    void End() {
      if (!ended_.exchange(true)) Finish(grpc::Status::OK);
    }

    Ps* const ps_;
    std::atomic<bool> ended_{false};
    grpc::ByteBuffer message_;
  };

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    MutexLock lock(&mu_);
    changed_.NotifyAll();
    may_read_ = by_hand_;
    return reactor_ = new Reactor(this);
  }

  int port_ = 0;
  std::atomic<bool> by_hand_{false};
  std::unique_ptr<grpc::Server> server_;

  Mutex mu_;
  CondVar changed_;
  Reactor* reactor_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool may_read_ ABSL_GUARDED_BY(mu_) = false;  // By hand: no read is under way.
  std::vector<int> in_messages_ ABSL_GUARDED_BY(mu_);
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint64_t> unanswered_ ABSL_GUARDED_BY(mu_);
  std::vector<Sequence> sequences_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ByteBuffer answers_ ABSL_GUARDED_BY(mu_);
};

class ConnectionTest : public testing::Test {
 protected:
  ConnectionTest()
      : connection_("ps", MakeChannel(ps_.address(), kMessageBytesMax, {}), thread_.queue(), &timer_, kNoTimeoutMs,
                    kMessageBytesMax) {}

  void Send(Connection::Done done, Sequence sequence = 0) {
    v1::Call call;
    call.mutable_push()->set_sequence(sequence);
    connection_.Send(&call, {}, std::move(done));
  }
  // Sends a call that is followed by another one once it is answered, `more` times in all.
  void SendAndFollow(int more) {
    Send([this, more](const absl::StatusOr<Connection::Answer>& answer) {
      if (answer.ok() && more > 0) SendAndFollow(more - 1);
    });
  }

  Ps ps_;
  Timer timer_;
  ConnectionThread thread_;
  Connection connection_;
};

TEST_F(ConnectionTest, CallsThatFollowTheAnswersOfAMessageGoInTwoMessages) {
  for (int i = 0; i < 8; ++i) SendAndFollow(kRoundsMax);
  size_t before = ps_.Await(8).size();
  bool halves = false;
  for (int round = 1; round <= kRoundsMax && !halves; ++round) {
    ps_.AnswerAll();
    const std::vector<int> messages = ps_.Await(8 * (round + 1));
    const std::vector<int> last(messages.begin() + before, messages.end());
    before = messages.size();
    halves = last == std::vector<int>{4, 4};
    // The end of the write before may be seen late: then all of them have waited for it.
    EXPECT_EQ(last, halves ? std::vector<int>({4, 4}) : std::vector<int>({8}));
  }
  EXPECT_TRUE(halves);
}

TEST_F(ConnectionTest, CallsOfOneThreadComeInTheirOrderBesideThoseOfOthers) {
  constexpr Sequence kThreads = 4;
  constexpr Sequence kCalls = 200;
  absl::Notification go;
  std::vector<std::thread> threads;
  for (Sequence t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      go.WaitForNotification();
      for (Sequence i = 0; i < kCalls; ++i) Send([](const auto&) {}, t * kCalls + i);
    });
  }
  go.Notify();
  for (std::thread& thread : threads) thread.join();
  ps_.Await(kThreads * kCalls);
  std::vector<Sequence> next(kThreads, 0);
  for (const Sequence sequence : ps_.sequences()) EXPECT_EQ(sequence % kCalls, next[sequence / kCalls]++);
  EXPECT_EQ(next, std::vector<Sequence>(kThreads, kCalls));
}

TEST_F(ConnectionTest, ACallThatFollowsAnOnlyAnswerWaitsForNone) {
  SendAndFollow(2);
  for (int calls = 1; calls <= 3; ++calls) {
    EXPECT_EQ(ps_.Await(calls), std::vector<int>(calls, 1));
    if (calls < 3) ps_.AnswerAll();
  }
}

TEST_F(ConnectionTest, ACallThatWaitsIsSentThoughNoOtherComes) {
  Send([this](const auto&) { SendAndFollow(0); });
  for (int i = 0; i < 3; ++i) SendAndFollow(0);
  std::vector<int> expected = ps_.Await(4);
  ps_.AnswerAll();
  expected.push_back(1);
  EXPECT_EQ(ps_.Await(5), expected);
}

TEST_F(ConnectionTest, AMessageThatIsNoAnswerEndsTheStreamAndWhatItHeldBack) {
  std::promise<absl::Status> followed;
  Send([&](const auto&) {
    Send([&](const absl::StatusOr<Connection::Answer>& answer) { followed.set_value(answer.status()); });
  });
  for (int i = 0; i < 3; ++i) SendAndFollow(0);
  ps_.Await(4);
  ps_.AnswerAll(/*strangers=*/1);
  EXPECT_EQ(followed.get_future().get().code(), absl::StatusCode::kInternal);
}

// After an only answer nothing is read until the next write.
class IdleTest : public ConnectionTest {
 protected:
  absl::Status SendAndAwait(int calls) {
    std::promise<absl::Status> ended;
    Send([&](const absl::StatusOr<Connection::Answer>& answer) { ended.set_value(answer.status()); });
    ps_.Await(calls);
    ps_.AnswerAll();
    return ended.get_future().get();
  }
};

TEST_F(IdleTest, MakesCallsOneAfterTheOther) {
  for (int calls = 1; calls <= 100; ++calls) EXPECT_TRUE(SendAndAwait(calls).ok());
}

TEST_F(IdleTest, MayBeClosed) {
  EXPECT_TRUE(SendAndAwait(1).ok());
  connection_.Close();
  std::promise<absl::Status> ended;
  Send([&](const absl::StatusOr<Connection::Answer>& answer) { ended.set_value(answer.status()); });
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kCancelled);
}

TEST_F(IdleTest, MayBeReset) {
  EXPECT_TRUE(SendAndAwait(1).ok());
  connection_.Reset(absl::UnavailableError("planted"));
  EXPECT_TRUE(SendAndAwait(2).ok());
}

// Time moves by hand: the real one never makes a call late.
class LateCallsTest : public testing::Test {
 protected:
  static constexpr int64_t kTimeoutMs = kNoTimeoutMs;

  // Sends a call that takes a message of its own.
  std::shared_ptr<std::promise<absl::Status>> Send() {
    auto ended = std::make_shared<std::promise<absl::Status>>();
    v1::Call call;
    call.mutable_push()->set_payload(std::string(kMessageBytesMax * 3 / 4, 'x'));
    connection_.Send(&call, {},
                     [ended](const absl::StatusOr<Connection::Answer>& answer) { ended->set_value(answer.status()); });
    return ended;
  }
  void Pass(int64_t ms) {
    now_.AdvanceMs(ms);
    connection_.CheckTime();
  }

  Ps ps_;
  Timer timer_;
  ManualTime now_;
  ConnectionThread thread_;
  Connection connection_{"ps",
                         MakeChannel(ps_.address(), kMessageBytesMax, {}),
                         thread_.queue(),
                         &timer_,
                         kTimeoutMs,
                         kMessageBytesMax,
                         /*shared_bytes=*/0,
                         &now_};
};

TEST_F(LateCallsTest, WhatWaitsBehindOthersOnASlowLinkIsNotLate) {
  ps_.ReadByHand();
  std::vector<std::shared_ptr<std::promise<absl::Status>>> calls;
  for (int i = 0; i < 8; ++i) calls.push_back(Send());
  for (size_t i = 0; i < calls.size(); ++i) {
    Pass(kTimeoutMs * 2 / 3);  // Of which the last call waits for more than five time-outs.
    ps_.ReadOne();
    ps_.Await(static_cast<int>(i) + 1);
    ps_.AnswerAll();
    const absl::Status status = calls[i]->get_future().get();
    ASSERT_TRUE(status.ok()) << "call " << i << ": " << status;
  }
}

TEST_F(LateCallsTest, AStreamOnWhichNothingMovesEnds) {
  const auto old = Send();
  ps_.Await(1);
  Pass(kTimeoutMs - 1);
  const auto young = Send();
  ps_.Await(2);
  std::future<absl::Status> late = old->get_future();
  while (late.wait_for(std::chrono::seconds(0)) != std::future_status::ready) Pass(kTimeoutMs / 2);
  EXPECT_EQ(late.get().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(young->get_future().get().ok());
}

TEST_F(LateCallsTest, ACallThatAloneIsNeverAnsweredIsLateInTheEnd) {
  std::future<absl::Status> never = Send()->get_future();
  int calls = 1;
  ps_.Await(calls);
  absl::Status other;
  while (other.ok()) {
    ASSERT_LT(calls, 20);
    const auto answered = Send();
    ps_.Await(++calls);
    ps_.AnswerNewest();
    other = answered->get_future().get();
    ASSERT_TRUE(other.ok()) << other;
    Pass(kTimeoutMs / 2);
    if (never.wait_for(std::chrono::seconds(0)) == std::future_status::ready) break;
    if (calls > 8) never.wait();
  }
  EXPECT_GT(calls, 6) << "others came for three time-outs";
  EXPECT_EQ(never.get().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace lodestone::worker
