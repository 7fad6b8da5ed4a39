#include "server/rpc/exchange.h"

#include <chrono>
#include <cmath>
#include <latch>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/rpc/exchange_fixture.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

TEST_F(ExchangeTest, RunsManyCallsOfOneMessageEachOnItsOwnPayload) {
  v1::ExchangeRequest request;
  for (Sequence sequence = 1; sequence <= 100; ++sequence) AddPush(sequence, 1.0f, &request);
  const auto pushed = Ask(request);
  for (const auto& [id, answer] : pushed) {
    EXPECT_EQ(answer.code(), 0u) << answer.error();
    EXPECT_GT(answer.push().shards_size(), 0);
  }
  v1::ExchangeRequest pull;
  AddPull(&pull);
  const auto answers = Ask(pull);
  ASSERT_TRUE(answers.at(1).has_pull());
  EXPECT_EQ(ValuesOf(1), std::vector<float>(kElements, 100.0f));
}

TEST_F(ExchangeTest, AnswersThatAreThereAtOnceComeTogether) {
  v1::ExchangeRequest request;
  for (int i = 0; i < 3; ++i) AddPull(&request);
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(stream_->Write(request));
    v1::ExchangeResponse response;
    ASSERT_TRUE(stream_->Read(&response));
    ASSERT_EQ(response.answers_size(), 3);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(response.answers(i).has_pull()) << response.answers(i).error();
  }
}

TEST_F(ExchangeTest, AnAnswerDoesNotWaitForACallThatTakesLonger) {
  std::latch busy(1), released(1);
  std::thread holder([&] {
    store_->shards().executors()[0].Submit([&] {
      busy.count_down();
      released.wait();
    });
  });
  busy.wait();
  v1::ExchangeRequest request;
  AddPull(&request);
  v1::Call* const ensure = request.add_calls();
  ensure->set_id(2);
  *ensure->mutable_ensure_tables()->add_tables() = AddingDense("waits_for_the_executor", 100, 10);
  ASSERT_TRUE(stream_->Write(request));
  v1::ExchangeResponse response;
  ASSERT_TRUE(stream_->Read(&response));
  ASSERT_EQ(response.answers_size(), 1);
  EXPECT_EQ(response.answers(0).id(), 1u);
  released.count_down();
  holder.join();
  ASSERT_TRUE(stream_->Read(&response));
  ASSERT_EQ(response.answers_size(), 1);
  EXPECT_EQ(response.answers(0).id(), 2u);
  EXPECT_EQ(response.answers(0).code(), 0u) << response.answers(0).error();
}

TEST_F(ExchangeTest, APushSentAgainOnAnotherStreamIsADuplicate) {
  v1::ExchangeRequest request;
  AddPush(1, 2.0f, &request);
  const v1::PushResponse first = Ask(request).at(1).push();
  for (const auto& result : first.shards()) EXPECT_FALSE(result.duplicate());
  Open();
  const v1::PushResponse second = Ask(request).at(1).push();
  for (const auto& result : second.shards()) EXPECT_TRUE(result.duplicate());
  EXPECT_EQ(second.shards_size(), first.shards_size());
  EXPECT_GT(second.shards_size(), 0);
}

TEST_F(ExchangeTest, PushPullAnswersWithWhatThePushDid) {
  auto push = NewPush(1);
  push.AddDense(dense(), {kElements, kBlockElements}, 3.0f);
  RequestBuilder<v1::PullRequest> pull(kShards);
  pull.AddDense(dense(), {kElements, kBlockElements}, std::nullopt);
  RequestBuilder<v1::PushPullRequest> both(kShards);
  *both.header.mutable_push() = push.header;
  *both.header.mutable_pull() = pull.header;
  both.bytes() = push.bytes();
  v1::ExchangeRequest request;
  Add(both, &request, &v1::Call::mutable_push_pull);
  const auto answers = Ask(request);
  ASSERT_TRUE(answers.at(1).has_push_pull()) << answers.at(1).error();
  EXPECT_EQ(ValuesOf(1), std::vector<float>(kElements, 3.0f));
}

TEST_F(ExchangeTest, AListOfKeysComesOnceAndIsReferredToFromThenOn) {
  const std::vector<Key> keys = {3, 4, 5, 6, 7};
  const auto pull = [&] {
    v1::ExchangeRequest request;
    AddListed(keys, std::nullopt, 0, v1::KeyList::REMEMBERED, &request);
    const v1::Answer answer = Ask(request).at(1);
    EXPECT_EQ(answer.keys(), v1::Answer::REMEMBERED) << answer.error();
    return ValuesOf(1);
  };
  v1::ExchangeRequest request;
  AddListed(keys, 1.0f, 1, v1::KeyList::IN_PARTS, &request);
  EXPECT_EQ(Ask(request).at(1).keys(), v1::Answer::NOT_REMEMBERED);
  request.Clear();
  AddListed(keys, 1.0f, 2, v1::KeyList::FIRST, &request);
  AddListed(keys, 1.0f, 3, v1::KeyList::REMEMBERED, &request);  // In the same message.
  for (const auto& [id, answer] : Ask(request)) EXPECT_EQ(answer.keys(), v1::Answer::REMEMBERED) << answer.error();
  EXPECT_EQ(pull(), std::vector<float>(keys.size() * kDim, 3.0f));

  // A push that is refused is no reason to forget its keys.
  request.Clear();
  AddListed({13, 14}, std::nanf(""), 4, v1::KeyList::FIRST, &request);
  const v1::Answer refused = Ask(request).at(1);
  EXPECT_EQ(refused.code(), static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT));
  EXPECT_EQ(refused.keys(), v1::Answer::REMEMBERED);
  request.Clear();
  AddListed({13, 14}, 1.0f, 5, v1::KeyList::REMEMBERED, &request);
  EXPECT_EQ(Ask(request).at(1).code(), 0u);

  v1::StatusResponse status;
  store_->FillStatus(&status);
  EXPECT_EQ(status.server().pushes(), 4u);
}

TEST_F(ExchangeTest, APushThatRefersToAListOfAnotherStreamDoesNothingAndCanBeSentAgain) {
  const std::vector<Key> keys = {3, 4, 5, 6, 7};
  v1::ExchangeRequest first;
  AddListed(keys, 1.0f, 1, v1::KeyList::FIRST, &first);
  EXPECT_EQ(Ask(first).at(1).keys(), v1::Answer::REMEMBERED);
  Open();
  v1::ExchangeRequest referring;
  AddListed(keys, 1.0f, 2, v1::KeyList::REMEMBERED, &referring);
  const v1::Answer forgotten = Ask(referring).at(1);
  EXPECT_EQ(forgotten.code(), static_cast<uint32_t>(grpc::StatusCode::FAILED_PRECONDITION));
  EXPECT_EQ(forgotten.keys(), v1::Answer::FORGOTTEN);
  v1::ExchangeRequest again;
  AddListed(keys, 1.0f, 2, v1::KeyList::FIRST, &again);
  for (const bool duplicate : {false, true}) {
    const v1::Answer answer = Ask(again).at(1);
    ASSERT_EQ(answer.code(), 0u) << answer.error();
    for (const auto& result : answer.push().shards()) EXPECT_EQ(result.duplicate(), duplicate);
  }
  EXPECT_EQ(PullRows(rows(), kDim, keys), std::vector<float>(keys.size(), 2.0f));
}

TEST_F(ExchangeTest, APushPullHasTheKeysOfBothInOneList) {
  const std::vector<Key> pushed = {3, 4, 5};
  const std::vector<Key> pulled = {4, 5, 6, 7};
  v1::ExchangeRequest push, pull;
  AddListed(pushed, 2.0f, 1, v1::KeyList::FIRST, &push);
  AddListed(pulled, std::nullopt, 0, v1::KeyList::FIRST, &pull);
  for (const bool sent : {true, false}) {
    const size_t key_bytes = pushed.size() * sizeof(Key);
    v1::ExchangeRequest both;
    v1::Call* const call = both.add_calls();
    call->set_id(1);
    *call->mutable_push_pull()->mutable_push() = push.calls(0).push();
    *call->mutable_push_pull()->mutable_pull() = pull.calls(0).pull();
    SetName({8, 9, static_cast<uint32_t>(pushed.size() + pulled.size())}, call->mutable_keys());
    call->mutable_keys()->set_place(sent ? v1::KeyList::FIRST : v1::KeyList::REMEMBERED);
    const std::string values = push.payload().substr(key_bytes);
    both.set_payload(sent ? push.payload().substr(0, key_bytes) + pull.payload() + values : values);
    call->set_payload_bytes(both.payload().size());
    const v1::Answer answer = Ask(both).at(1);
    ASSERT_EQ(answer.code(), 0u) << answer.error();
    EXPECT_EQ(answer.keys(), v1::Answer::REMEMBERED);
    const std::vector<float> expected = {2, 2, 0, 0};
    std::map<Key, float> by_key;
    for (size_t i = 0; i < pulled.size(); ++i) by_key[KeysInOrder(pulled)[i]] = ValuesOf(1)[i * kDim];
    for (size_t i = 0; i < pulled.size(); ++i) EXPECT_EQ(by_key[pulled[i]], expected[i]) << pulled[i];
  }
}

TEST_F(ExchangeTest, AListThatDoesNotFitItsCallIsRefused) {
  const std::vector<Key> keys = {3, 4, 5, 6, 7};
  v1::ExchangeRequest request;
  AddListed(keys, 1.0f, 1, v1::KeyList::FIRST, &request);
  request.mutable_calls(0)->mutable_keys()->set_count(4);  // The fifth would be taken for a value.
  request.mutable_payload()->erase(0, sizeof(Key));
  request.mutable_calls(0)->set_payload_bytes(request.payload().size());
  const v1::Answer answer = Ask(request).at(1);
  EXPECT_EQ(answer.code(), static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT)) << answer.error();
  v1::StatusResponse status;
  store_->FillStatus(&status);
  EXPECT_EQ(status.server().pushes(), 0u);
}

TEST_F(ExchangeTest, ACallThatIsRefusedDoesNotDisturbTheOthers) {
  v1::ExchangeRequest request;
  AddPush(1, 1.0f, &request);
  request.mutable_calls(0)->mutable_push()->mutable_parts(0)->set_table(12345);
  AddPush(2, 1.0f, &request);
  request.add_calls()->set_id(3);  // Asks for nothing.
  const auto answers = Ask(request);
  EXPECT_EQ(answers.at(1).code(), static_cast<uint32_t>(grpc::StatusCode::NOT_FOUND));
  EXPECT_THAT(answers.at(1).error(), HasSubstr("12345"));
  EXPECT_EQ(answers.at(2).code(), 0u);
  EXPECT_EQ(answers.at(3).code(), static_cast<uint32_t>(grpc::StatusCode::UNIMPLEMENTED));
}

TEST_F(ExchangeTest, PayloadsThatDoNotAddUpEndTheStreamAndNothingIsApplied) {
  for (const int difference : {-4, 4}) {
    v1::ExchangeRequest request;
    AddPush(1, 1.0f, &request);
    request.mutable_calls(0)->set_payload_bytes(request.calls(0).payload_bytes() + difference);
    Open();
    ASSERT_TRUE(stream_->Write(request));
    v1::ExchangeResponse response;
    EXPECT_FALSE(stream_->Read(&response));
    const grpc::Status status = stream_->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  }
  v1::StatusResponse status;
  store_->FillStatus(&status);
  EXPECT_EQ(status.server().pushes(), 0u);
}

TEST_F(ExchangeTest, ASubscriptionSharesTheStreamWithOtherCalls) {
  v1::ExchangeRequest subscribe;
  subscribe.add_calls()->set_id(77);
  subscribe.mutable_calls(0)->mutable_subscribe()->add_tables()->set_table(dense());
  ASSERT_TRUE(stream_->Write(subscribe));
  size_t anchored = 0;
  while (anchored < kShards) {
    v1::ExchangeResponse response;
    ASSERT_TRUE(stream_->Read(&response));
    for (const v1::Answer& answer : response.answers()) {
      EXPECT_EQ(answer.id(), 77u);
      for (const auto& delta : answer.delta().shards()) anchored += delta.complete();
    }
  }
  // A second one with the same id is refused, which the first survives.
  ASSERT_TRUE(stream_->Write(subscribe));
  v1::ExchangeResponse response;
  ASSERT_TRUE(stream_->Read(&response));
  EXPECT_EQ(response.answers(0).code(), static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT));
  v1::ExchangeRequest push;
  AddPush(1, 1.0f, &push);
  EXPECT_EQ(Ask(push).at(1).code(), 0u);
  EXPECT_TRUE(stream_->WritesDone());
  while (stream_->Read(&response)) {
  }
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(ExchangeTest, AMalformedMessageEndsTheStreamWithItsSubscriptions) {
  v1::ExchangeRequest request;
  request.add_calls()->mutable_subscribe()->add_tables()->set_table(dense());
  ASSERT_TRUE(stream_->Write(request));
  v1::ExchangeResponse response;
  ASSERT_TRUE(stream_->Read(&response));
  request.mutable_calls(0)->set_payload_bytes(1);
  ASSERT_TRUE(stream_->Write(request));
  while (stream_->Read(&response)) {
  }
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ExchangeTest, TooManyCallsInAMessageEndTheStream) {
  v1::ExchangeRequest request;
  for (size_t i = 0; i < limits::kExchangeCallsMax; ++i) request.add_calls()->set_id(i);
  const auto answers = Ask(request);
  for (const auto& [id, answer] : answers) {
    EXPECT_EQ(answer.code(), static_cast<uint32_t>(grpc::StatusCode::UNIMPLEMENTED));
  }
  request.add_calls();
  ASSERT_TRUE(stream_->Write(request));
  v1::ExchangeResponse response;
  EXPECT_FALSE(stream_->Read(&response));
  const grpc::Status status = stream_->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("1025"));
}

TEST_F(ExchangeTest, SubscriptionsThatRaceForAnIdLeaveOneOfThem) {
  v1::ExchangeRequest subscribe;
  subscribe.add_calls()->mutable_subscribe()->add_tables()->set_table(dense());
  constexpr int kTimes = 20;
  for (int i = 0; i < kTimes; ++i) ASSERT_TRUE(stream_->Write(subscribe));
  int refused = 0;
  size_t anchored = 0;
  while (refused < kTimes - 1 || anchored < kShards) {
    v1::ExchangeResponse response;
    ASSERT_TRUE(stream_->Read(&response));
    for (const v1::Answer& answer : response.answers()) {
      refused += answer.code() == static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT);
      for (const auto& delta : answer.delta().shards()) anchored += delta.complete();
    }
  }
  EXPECT_EQ(refused, kTimes - 1);
}

TEST_F(ExchangeTest, ASubscriptionWithAPayloadIsRefused) {
  v1::ExchangeRequest request;
  request.add_calls()->mutable_subscribe()->add_tables()->set_table(dense());
  request.mutable_calls(0)->set_payload_bytes(3);
  request.set_payload("abc");
  const auto answers = Ask(request);
  EXPECT_EQ(answers.at(0).code(), static_cast<uint32_t>(grpc::StatusCode::INVALID_ARGUMENT));
}

TEST_F(ExchangeTest, AClientThatReadsNothingHoldsUpOnlyItself) {
  std::latch sent(1);  // A good deal.
  // Sends pulls without reading their answers until flow control stops it.
  std::thread silent([&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    const auto stream = stub_->Exchange(&context);
    v1::ExchangeRequest request;
    AddPull(&request);
    uint64_t id = 0;
    for (int i = 0; i < 20'000; ++i) {
      request.mutable_calls(0)->set_id(++id);
      if (!stream->Write(request)) break;
      if (i == 1'000) sent.count_down();
    }
    stream->WritesDone();
    v1::ExchangeResponse response;
    uint64_t answers = 0;
    while (stream->Read(&response)) answers += response.answers_size();
    EXPECT_EQ(answers, id);
    EXPECT_TRUE(stream->Finish().ok());
  });
  sent.wait();
  v1::ExchangeRequest push;
  AddPush(1, 1.0f, &push);
  EXPECT_EQ(Ask(push).at(1).code(), 0u);
  silent.join();
}

TEST_F(ExchangeTest, AStreamThatMeansAnotherPsIsTurnedAwayBeforeAnythingIsDone) {
  for (const std::string& other : {PsName(2, "here"), PsName(1, "elsewhere"), std::string("\xff\0\n", 3)}) {
    Open(other);
    v1::ExchangeRequest push;
    AddPush(1, 1.0f, &push);
    stream_->Write(push);
    v1::ExchangeResponse response;
    EXPECT_FALSE(stream_->Read(&response));
    const grpc::Status status = stream_->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("this is ps 1 of cluster `here`"));
  }
  Open(PsName(1, "here"));
  v1::ExchangeRequest push;
  AddPush(1, 1.0f, &push);
  const auto answers = Ask(push);
  EXPECT_EQ(answers.at(1).code(), 0u);
  EXPECT_FALSE(answers.at(1).push().shards(0).duplicate());
}

TEST_F(ExchangeTest, DrainingAnswersWhatItHasReadAndEndsTheStream) {
  v1::ExchangeRequest push;
  AddPush(1, 1.0f, &push);
  EXPECT_EQ(Ask(push).at(1).code(), 0u);
  exchange_->Drain();
  v1::ExchangeResponse response;
  EXPECT_FALSE(stream_->Read(&response));
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  // So does one that comes later.
  Open();
  EXPECT_FALSE(stream_->Read(&response));
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(ExchangeTest, ClientsThatVanishWithCallsUnderWayLeaveNothingBehind) {
  for (int i = 0; i < 50; ++i) {
    Open();
    v1::ExchangeRequest request;
    AddPush(1 + i, 1.0f, &request);
    AddPull(&request);
    request.add_calls()->set_id(100);
    request.mutable_calls(2)->mutable_subscribe()->add_tables()->set_table(dense());
    ASSERT_TRUE(stream_->Write(request));
    context_->TryCancel();
    EXPECT_FALSE(stream_->Finish().ok());
  }
}

}  // namespace
}  // namespace lodestone::server
