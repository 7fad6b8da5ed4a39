// What callers of ParameterServer get who may not do everything, over real connections.
#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "grpcpp/client_context.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "server/rpc/broadcaster.h"
#include "server/rpc/exchange.h"
#include "server/rpc/parameter_service.h"
#include "server/store/store.h"
#include "tests/server/auth/identities_file.h"
#include "tests/server/rpc/exchange_tables.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

constexpr char kIdentities[] = ", role: worker, tables_write: [open]";

class ExchangeRightsTest : public StoreTest {
 protected:
  using RawStream = grpc::ClientReaderWriter<v1::ExchangeRequest, v1::ExchangeResponse>;

  // A stream of one caller.
  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<RawStream> stream;

    // Sends calls in one message, which must be answered all; by position.
    std::vector<v1::Answer> Ask(const v1::ExchangeRequest& request) {
      EXPECT_TRUE(stream->Write(request));
      std::vector<v1::Answer> answers(request.calls_size());
      v1::ExchangeResponse response;
      for (int got = 0; got < request.calls_size() && stream->Read(&response);) {
        for (const v1::Answer& answer : response.answers()) answers.at(answer.id()) = answer, ++got;
      }
      return answers;
    }
    // Waits for the end.
    grpc::Status End() {
      v1::ExchangeResponse response;
      while (stream->Read(&response)) {
      }
      return stream->Finish();
    }
  };

  void Serve(const std::string& identities, uint64_t elements = kElements) {
    Make();
    tables_.name_of = [this](TableId table) { return store_->tables().NameOf(table); };
    tables_.totals = [this] { return store_->tables().totals(); };
    timer_ = std::make_unique<Timer>(&time_, Timer::AtEnd::kRun);
    Access::Dependencies dependencies;
    dependencies.tables = &tables_;
    dependencies.time = &time_;
    dependencies.timer = timer_.get();
    access_ = std::make_unique<Access>(IdentitiesOf(identities), dependencies);
    broadcaster_ = std::make_unique<Broadcaster>(store_.get(), 16);
    exchange_ = std::make_unique<Exchange>(store_.get(), broadcaster_.get(), 4242, "", access_.get());
    service_ =
        std::make_unique<ParameterService>(store_.get(), broadcaster_.get(), exchange_.get(), 4242, access_.get());
    grpc::ServerBuilder builder;
    ApplyServerSettings(&builder, 64 << 20);
    int port = 0;
    builder.AddListeningPort(
        "127.0.0.1:0", ServerCredentialsOf(nullptr, [this](const IncomingCall& call) { return access_->Admit(call); }),
        &port);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    stub_ = v1::ParameterServer::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", port), 64 << 20));
    layout_ = {elements, kBlockElements};
    for (const Incarnation worker : {kWorker, kWorker + 1}) {
      ASSERT_TRUE(
          Ensure({AddingDense("open", elements, kBlockElements), AddingDense("secret", elements, kBlockElements)},
                 worker)
              .ok());
    }
  }
  ~ExchangeRightsTest() override {
    if (server_ == nullptr) return;
    broadcaster_->Shutdown();
    exchange_->Drain();
    server_->Shutdown(std::chrono::system_clock::now());
  }

  static void Show(const std::string& name, grpc::ClientContext* context) {
    if (!name.empty()) context->AddMetadata(kAuthorizationKey, absl::StrCat("Bearer ", name, "-token"));
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  }
  std::unique_ptr<Stream> OpenAs(const std::string& name) {
    auto stream = std::make_unique<Stream>();
    Show(name, &stream->context);
    stream->stream = stub_->Exchange(&stream->context);
    return stream;
  }

  static std::string BytesOf(const RequestBuilder<v1::PushRequest>& push) {
    const Payload payload = push.payload();
    std::string bytes(payload.size(), '\0');
    payload.bytes().CopyTo(bytes.data());
    return bytes;
  }
  RequestBuilder<v1::PushRequest> PushTo(const std::string& table, Sequence sequence, Incarnation worker = kWorker) {
    auto push = NewPush(sequence, worker);
    push.AddDense(TableIdOf(table), layout_, 1.0f);
    return push;
  }
  void AddPush(const std::string& table, Sequence sequence, v1::ExchangeRequest* request,
               Incarnation worker = kWorker) {
    const auto push = PushTo(table, sequence, worker);
    v1::Call* const call = request->add_calls();
    call->set_id(request->calls_size() - 1);
    *call->mutable_push() = push.header;
    const std::string bytes = BytesOf(push);
    call->set_payload_bytes(bytes.size());
    request->mutable_payload()->append(bytes);
  }
  void AddPull(const std::string& table, v1::ExchangeRequest* request) {
    RequestBuilder<v1::PullRequest> pull(kShards);
    pull.AddDense(TableIdOf(table), layout_, std::nullopt);
    v1::Call* const call = request->add_calls();
    call->set_id(request->calls_size() - 1);
    *call->mutable_pull() = pull.header;
  }
  v1::ExchangeRequest OnePush(const std::string& table, Sequence sequence, Incarnation worker = kWorker) {
    v1::ExchangeRequest request;
    AddPush(table, sequence, &request, worker);
    return request;
  }
  // The first element of a table.
  float ValueOf(const std::string& table) { return Floats(PullBlocks(TableIdOf(table), layout_).at(0).second)[0]; }
  v1::IdentityStatus StatusOf(const std::string& name) {
    v1::StatusResponse status;
    access_->FillStatus(&status);
    for (const v1::IdentityStatus& identity : status.identities()) {
      if (identity.name() == name) return identity;
    }
    return v1::IdentityStatus();
  }

  BlockLayout layout_;
  TableInfo tables_;
  std::unique_ptr<Timer> timer_;
  std::unique_ptr<Access> access_;
  std::unique_ptr<Broadcaster> broadcaster_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<ParameterService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ParameterServer::Stub> stub_;
};

TEST_F(ExchangeRightsTest, WhoIsUnknownOpensNoStream) {
  ASSERT_NO_FATAL_FAILURE(Serve(IdentityLine("wanda", kIdentities)));
  for (const char* name : {"", "mallory"}) {
    const auto stream = OpenAs(name);
    stream->stream->Write(OnePush("open", 1));
    EXPECT_EQ(stream->End().error_code(), grpc::StatusCode::UNAUTHENTICATED) << name;
  }
  EXPECT_EQ(ValueOf("open"), 0);
}

TEST_F(ExchangeRightsTest, EachCallOfAMessageIsJudgedByItself) {
  ASSERT_NO_FATAL_FAILURE(Serve(IdentityLine("wanda", kIdentities) + IdentityLine("olga", ", role: observer")));
  v1::ExchangeRequest request;
  AddPush("secret", 1, &request);
  AddPush("open", 2, &request);
  AddPull("secret", &request);
  request.add_calls()->set_id(3);
  request.mutable_calls(3)->mutable_subscribe()->add_tables()->set_table(TableIdOf("missing"));

  const auto wanda = OpenAs("wanda")->Ask(request);
  EXPECT_EQ(wanda[0].code(), static_cast<uint32_t>(absl::StatusCode::kPermissionDenied));
  EXPECT_EQ(wanda[0].error(), "`wanda` (worker) may not push to table `secret`");
  EXPECT_TRUE(wanda[1].has_push()) << wanda[1].error();
  EXPECT_TRUE(wanda[2].has_pull()) << wanda[2].error();
  EXPECT_EQ(wanda[3].code(), static_cast<uint32_t>(absl::StatusCode::kNotFound)) << wanda[3].error();
  EXPECT_EQ(ValueOf("secret"), 0);
  EXPECT_EQ(ValueOf("open"), 1);

  const auto olga = OpenAs("olga")->Ask(request);
  EXPECT_THAT(olga[0].error(), HasSubstr("`olga` (observer) may not call"));
  EXPECT_THAT(olga[1].error(), HasSubstr("`olga` (observer) may not call"));
  EXPECT_TRUE(olga[2].has_pull()) << olga[2].error();
  EXPECT_EQ(ValueOf("open"), 1);
}

TEST_F(ExchangeRightsTest, SingleCallsAreJudgedAsThoseOfAStream) {
  ASSERT_NO_FATAL_FAILURE(Serve(IdentityLine("wanda", kIdentities) + IdentityLine("olga", ", role: observer")));
  const auto push = [&](const std::string& name, const std::string& table) {
    const auto wanted = PushTo(table, 1);
    v1::PushRequest request = wanted.header;
    request.set_payload(BytesOf(wanted));
    grpc::ClientContext context;
    Show(name, &context);
    v1::PushResponse response;
    return stub_->Push(&context, request, &response);
  };
  EXPECT_EQ(push("", "open").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(push("olga", "open").error_message(),
            "`olga` (observer) may not call /lodestone.v1.ParameterServer/Push, which needs the role worker");
  EXPECT_EQ(push("wanda", "secret").error_message(), "`wanda` (worker) may not push to table `secret`");
  EXPECT_EQ(ValueOf("secret"), 0);
  EXPECT_TRUE(push("wanda", "open").ok());
  EXPECT_EQ(ValueOf("open"), 1);
  const auto ensure = [&](const std::string& name, const std::string& table) {
    v1::EnsureTablesRequest request;
    *request.add_tables() = AddingDense(table, kElements, kBlockElements);
    grpc::ClientContext context;
    Show(name, &context);
    v1::EnsureTablesResponse response;
    return stub_->EnsureTables(&context, request, &response).error_code();
  };
  EXPECT_EQ(ensure("olga", "another"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(ensure("wanda", "another"), grpc::StatusCode::UNAVAILABLE) << "it may read that, once a worker has made it";
  EXPECT_EQ(store_->tables().NameOf(TableIdOf("another")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ensure("wanda", "secret"), grpc::StatusCode::OK) << "it may be read";
}

TEST_F(ExchangeRightsTest, WhoIsRevokedIsStoppedOnTheStreamsThatHeHas) {
  ASSERT_NO_FATAL_FAILURE(Serve(IdentityLine("wanda", kIdentities) + IdentityLine("olga", ", role: observer")));
  const auto wanda = OpenAs("wanda"), olga = OpenAs("olga");
  EXPECT_TRUE(wanda->Ask(OnePush("open", 1))[0].has_push());
  v1::ExchangeRequest pull;
  AddPull("open", &pull);
  EXPECT_TRUE(olga->Ask(pull)[0].has_pull());
  // One that only listens.
  grpc::ClientContext context;
  Show("wanda", &context);
  v1::SubscribeRequest subscribe;
  subscribe.add_tables()->set_table(TableIdOf("open"));
  const auto deltas = stub_->Subscribe(&context, subscribe);
  v1::Delta delta;
  ASSERT_TRUE(deltas->Read(&delta));

  access_->Replace(IdentitiesOf(IdentityLine("olga", ", role: observer")));
  EXPECT_EQ(wanda->Ask(OnePush("open", 2))[0].code(), static_cast<uint32_t>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(ValueOf("open"), 1);
  access_->CheckStreams();
  EXPECT_EQ(wanda->End().error_code(), grpc::StatusCode::UNAVAILABLE);
  while (deltas->Read(&delta)) {
  }
  EXPECT_EQ(deltas->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(OpenAs("wanda")->End().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(olga->Ask(pull)[0].has_pull()) << "nobody else notices";
}

TEST_F(ExchangeRightsTest, WhoIsRevokedAndDoesNotTakeHisAnswersIsCutOff) {
  constexpr uint64_t kManyElements = 500'000;
  ASSERT_NO_FATAL_FAILURE(Serve(IdentityLine("wanda", ", role: worker"), kManyElements));
  const auto wanda = OpenAs("wanda");
  v1::ExchangeRequest pulls;
  for (int i = 0; i < 50; ++i) AddPull("open", &pulls);  // 100 MB that nobody reads.
  ASSERT_TRUE(wanda->stream->Write(pulls));
  while (StatusOf("wanda").calls() < 50) std::this_thread::yield();
  access_->Replace(IdentitiesOf(IdentityLine("olga", ", role: observer")));
  access_->CheckStreams();
  access_->CheckStreams();
  server_->Shutdown();  // Waits for the streams that there are, however long.
}

TEST_F(ExchangeRightsTest, AFloodIsHeldBackOnItsOwnStreamOnly) {
  ASSERT_NO_FATAL_FAILURE(Serve(IdentityLine("flood", ", role: worker, pushes_per_second_max: 10") +
                                IdentityLine("well", ", role: worker, pushes_per_second_max: 100")));
  constexpr int kFlood = 200, kWell = 60;
  const auto flood = OpenAs("flood");
  std::atomic<int> answered{0}, taken{0};
  std::thread writer([&] {
    for (int i = 1; i <= kFlood; ++i) {
      if (!flood->stream->Write(OnePush("open", i))) return;
    }
  });
  std::thread reader([&] {
    v1::ExchangeResponse response;
    while (answered.load() < kFlood && flood->stream->Read(&response)) {
      for (const v1::Answer& answer : response.answers()) {
        EXPECT_TRUE(answer.has_push() || answer.code() == static_cast<uint32_t>(absl::StatusCode::kResourceExhausted))
            << answer.error();
        taken.fetch_add(answer.has_push());
        answered.fetch_add(1);
      }
    }
  });
  // A second's worth, and then one that is to be waited for.
  while (answered.load() < 11) std::this_thread::yield();

  // The clock stands still, and so does the flood; who keeps to his rate does not notice.
  const auto well = OpenAs("well");
  for (int i = 1; i <= kWell; ++i) EXPECT_TRUE(well->Ask(OnePush("secret", i, kWorker + 1))[0].has_push()) << i;
  EXPECT_EQ(ValueOf("secret"), kWell);
  EXPECT_EQ(StatusOf("well").throttled(), 0);
  // A second's worth, another one ahead, and the one that goes beyond it.
  EXPECT_LE(StatusOf("flood").calls(), 21);

  int64_t elapsed_ms = 0;
  while (answered.load() < kFlood) {
    EXPECT_LE(taken.load(), 21 + elapsed_ms / 100);
    time_.AdvanceMs(10);
    elapsed_ms += 10;
    timer_->CheckTime();
    std::this_thread::yield();
  }
  writer.join();
  reader.join();
  EXPECT_LE(taken.load(), 21 + elapsed_ms / 100);
  EXPECT_GT(taken.load(), 21) << "it went on, at its rate";
  EXPECT_GT(StatusOf("flood").throttled(), 0);
}

TEST_F(ExchangeRightsTest, TheAnswerOfASinglePushBeyondTheQuotaIsHeldBack) {
  ASSERT_NO_FATAL_FAILURE(Serve(IdentityLine("wanda", ", role: worker, pushes_per_second_max: 1")));
  const auto push = [&](Sequence sequence) {
    const auto wanted = PushTo("open", sequence);
    v1::PushRequest request = wanted.header;
    request.set_payload(BytesOf(wanted));
    grpc::ClientContext context;
    Show("wanda", &context);
    v1::PushResponse response;
    return stub_->Push(&context, request, &response);
  };
  ASSERT_TRUE(push(1).ok());
  std::atomic<bool> answered{false};
  std::thread second([&] {
    EXPECT_TRUE(push(2).ok());
    answered = true;
  });
  while (ValueOf("open") < 2) std::this_thread::yield();
  EXPECT_FALSE(answered.load()) << "before its time has come";
  // It is held from a moment later on, which nobody sees.
  while (!answered) {
    time_.AdvanceMs(1000);
    timer_->CheckTime();
    std::this_thread::yield();
  }
  second.join();
}

}  // namespace
}  // namespace lodestone::server
