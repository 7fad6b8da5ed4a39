// Which calls of a connection go together in a message: a server that answers when it is told counts them.
#include "worker/rpc/connection.h"

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutex.h"
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
    explicit Reactor(Ps* ps) : ps_(ps) { StartRead(&message_); }
    void OnReadDone(bool ok) override {
      if (!ok) return Finish(grpc::Status::OK);
      v1::ExchangeRequest header;
      Payload payload;
      LODESTONE_CHECK(ParseMessage(message_, &header, &payload).ok());
      {
        MutexLock lock(&ps_->mu_);
        ps_->in_messages_.push_back(header.calls_size());
        ps_->calls_ += header.calls_size();
        for (const v1::Call& call : header.calls()) ps_->unanswered_.push_back(call.id());
        ps_->changed_.NotifyAll();
      }
      message_.Clear();
      StartRead(&message_);
    }
    void OnWriteDone(bool) override {
      MutexLock lock(&ps_->mu_);
      ps_->writing_ = false;
      ps_->changed_.NotifyAll();
    }
    void OnDone() override { delete this; }

   private:
    Ps* const ps_;
    grpc::ByteBuffer message_;
  };

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    MutexLock lock(&mu_);
    return reactor_ = new Reactor(this);
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;

  Mutex mu_;
  CondVar changed_;
  Reactor* reactor_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::vector<int> in_messages_ ABSL_GUARDED_BY(mu_);
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint64_t> unanswered_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ByteBuffer answers_ ABSL_GUARDED_BY(mu_);
};

class ConnectionTest : public testing::Test {
 protected:
  ConnectionTest()
      : connection_("ps", MakeChannel(ps_.address(), kMessageBytesMax, {}), thread_.queue(), &timer_, kNoTimeoutMs,
                    kMessageBytesMax) {}

  void Send(Connection::Done done) {
    v1::Call call;
    call.mutable_push();
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

}  // namespace
}  // namespace lodestone::worker
