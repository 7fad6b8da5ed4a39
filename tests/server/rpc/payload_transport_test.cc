#include "server/rpc/payload_transport.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/wire/key_list.h"
#include "common/wire/shared_memory.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

constexpr size_t kMemoryBytes = 64 << 10;
constexpr uint64_t kAt = kSharedMemoryHead;

Payload PayloadOf(const std::string& bytes) { return Payload({grpc::Slice(bytes)}); }

std::string BytesOf(const Payload& payload) {
  std::string bytes(payload.size(), '\0');
  payload.bytes().CopyTo(bytes.data());
  return bytes;
}

class PayloadTransportTest : public ::testing::Test {
 protected:
  PayloadTransportTest()
      : memory_(*SharedMemory::Make(kMemoryBytes)),
        transport_("a client", std::make_shared<KeyListPool>(), [] { return SharedUse::kCopied; }) {}

  // A pull that offers the memory; its answer.
  v1::Answer Offer(PayloadTransport* transport) {
    v1::Call call;
    call.set_id(1);
    call.mutable_pull();
    *call.mutable_shared_memory() = memory_->Offer();
    AnswerRoute route(0);
    EXPECT_TRUE(transport->Receive(call, Payload(), &route).ok());
    return AnswerOf(route, {}).first;
  }
  // What is sent for a call whose result is `values`.
  static std::pair<v1::Answer, std::string> AnswerOf(const AnswerRoute& route, std::vector<grpc::Slice> values,
                                                     absl::StatusCode code = absl::StatusCode::kOk) {
    v1::Answer answer;
    answer.set_code(static_cast<uint32_t>(code));
    route.Complete(&answer, &values);
    return {answer, BytesOf(Payload(std::move(values)))};
  }

  const std::shared_ptr<SharedMemory> memory_;
  PayloadTransport transport_;
};

TEST_F(PayloadTransportTest, AMessagesPayloadIsTheCalls) {
  transport_.BeginMessage();
  v1::Call call;
  call.set_id(9);
  call.mutable_push();
  AnswerRoute route(0);
  const absl::StatusOr<RequestPayload> numbers = transport_.Receive(call, PayloadOf("gradients"), &route);
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  EXPECT_EQ(BytesOf(numbers->payload), "gradients");
  EXPECT_FALSE(numbers->keys.has_value());
  EXPECT_EQ(route.request_bytes(), 9);
  const auto [answer, payload] = AnswerOf(route, {grpc::Slice("va"), grpc::Slice("lues")});
  EXPECT_EQ(answer.id(), 9);
  EXPECT_EQ(answer.keys(), v1::Answer::NO_LIST);
  EXPECT_EQ(answer.shared_memory(), v1::Answer::NO_OFFER);
  EXPECT_EQ(answer.shared_bytes(), 0);
  EXPECT_EQ(answer.payload_bytes(), 6);
  EXPECT_EQ(payload, "values");
}

TEST_F(PayloadTransportTest, KeysValuesAndAnswersMayAllTravelOutsideTheMessage) {
  transport_.BeginMessage();
  EXPECT_EQ(Offer(&transport_).shared_memory(), v1::Answer::ACCEPTED);
  std::memcpy(memory_->data() + kAt, "gradients", 9);
  v1::Call call;
  call.set_id(2);
  call.mutable_push_pull();
  SetName({3, 4, 1}, call.mutable_keys());
  call.mutable_keys()->set_place(v1::KeyList::FIRST);
  call.mutable_values()->set_offset(kAt);
  call.mutable_values()->set_bytes(9);
  call.mutable_room()->set_offset(kAt + 16);
  call.mutable_room()->set_bytes(6);
  const Key key = 77;
  AnswerRoute route(0);
  const absl::StatusOr<RequestPayload> numbers =
      transport_.Receive(call, PayloadOf(std::string(reinterpret_cast<const char*>(&key), sizeof key)), &route);
  ASSERT_TRUE(numbers.ok()) << numbers.status();
  EXPECT_EQ(BytesOf(numbers->payload), "gradients");
  ASSERT_TRUE(numbers->keys.has_value());
  EXPECT_EQ(numbers->keys->bytes().Load<Key>(0), key);
  EXPECT_EQ(route.request_bytes(), sizeof key + 9) << "the keys of the message, and the copy of the values";
  const auto [answer, payload] = AnswerOf(route, {grpc::Slice("va"), grpc::Slice("lues")});
  EXPECT_EQ(answer.keys(), v1::Answer::REMEMBERED);
  EXPECT_EQ(answer.shared_bytes(), 6);
  EXPECT_EQ(answer.payload_bytes(), 0);
  EXPECT_EQ(payload, "");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(memory_->data()) + kAt + 16, 6), "values");
}

TEST_F(PayloadTransportTest, ACallWhosePayloadIsNotFoundIsAnsweredWithWhatIsKnownOfIt) {
  transport_.BeginMessage();
  v1::Call call;
  call.set_id(5);
  call.mutable_push();
  SetName({3, 4, 1}, call.mutable_keys());
  call.mutable_keys()->set_place(v1::KeyList::REMEMBERED);
  *call.mutable_shared_memory() = memory_->Offer();
  AnswerRoute route(0);
  const absl::StatusOr<RequestPayload> numbers = transport_.Receive(call, PayloadOf("grads"), &route);
  EXPECT_EQ(numbers.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(route.request_bytes(), 5);
  const v1::Answer answer = AnswerOf(route, {}, numbers.status().code()).first;
  EXPECT_EQ(answer.id(), 5);
  EXPECT_EQ(answer.keys(), v1::Answer::FORGOTTEN);
  EXPECT_EQ(answer.shared_memory(), v1::Answer::ACCEPTED);
}

TEST_F(PayloadTransportTest, WithoutAPolicySharedMemoryIsRefused) {
  PayloadTransport transport("a client", std::make_shared<KeyListPool>(), nullptr);
  transport.BeginMessage();
  EXPECT_EQ(Offer(&transport).shared_memory(), v1::Answer::REFUSED);
  v1::Call call;
  call.mutable_pull();
  call.mutable_room()->set_offset(kAt);
  call.mutable_room()->set_bytes(6);
  AnswerRoute route(0);
  EXPECT_EQ(transport.Receive(call, Payload(), &route).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace lodestone::server
