#include "worker/rpc/shared_memory_calls.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/wire/message.h"
#include "common/wire/shared_memory.h"
#include "gmock/gmock.h"
#include "grpcpp/support/slice.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.pb.h"
#include "worker/rpc/call_payload.h"

namespace lodestone::worker {
namespace {

using ::testing::HasSubstr;
using Held = SharedMemoryCalls::Held;

constexpr size_t kLarge = 2 * kSharedBytesMin + 1;
constexpr size_t kRangesBytes = 1 << 20;
constexpr size_t kMemoryBytes = kSharedMemoryHead + kRangesBytes;

// Bytes that differ by where they are and by `of`.
std::string Text(size_t bytes, uint8_t of) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 7 + i / 256 + of);
  return text;
}

std::string TextOf(const std::vector<grpc::Slice>& slices) {
  std::string text;
  for (const grpc::Slice& slice : slices) text.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return text;
}

std::string TextOf(const Payload& payload) {
  std::string text(payload.size(), '\0');
  payload.bytes().CopyTo(text.data());
  return text;
}

// A push whose values come in slices of these sizes.
CallPayload Push(const std::vector<size_t>& sizes) {
  CallPayload numbers;
  for (size_t i = 0; i < sizes.size(); ++i) {
    numbers.values.emplace_back(Text(sizes[i], static_cast<uint8_t>(1 + i)));
  }
  return numbers;
}

CallPayload Pull(uint64_t answer_bytes) {
  CallPayload numbers;
  numbers.answer_bytes = answer_bytes;
  return numbers;
}

// What an answer says of an offer.
v1::Answer Outcome(v1::Answer::SharedMemory outcome) {
  v1::Answer answer;
  answer.set_shared_memory(outcome);
  return answer;
}

v1::Answer WithSharedBytes(uint64_t bytes) {
  v1::Answer answer;
  answer.set_shared_bytes(bytes);
  return answer;
}

bool SaysNothing(const v1::Call& call) { return !call.has_shared_memory() && !call.has_values() && !call.has_room(); }

bool HasNothing(const Held& held) {
  return held.ranges == nullptr && !held.values.has_value() && !held.room.has_value();
}

bool Overlap(const v1::SharedRange& a, const v1::SharedRange& b) {
  return a.offset() < b.offset() + b.bytes() && b.offset() < a.offset() + a.bytes();
}

class SharedCallsTest : public ::testing::Test {
 protected:
  Held Put(const CallPayload& numbers) { return calls_.Put(numbers, &call_); }

  SharedMemoryCalls calls_{"ps 0", kMemoryBytes};
  v1::Call call_;  // What was put last.
};

TEST_F(SharedCallsTest, NothingIsOfferedWhileCallsAreSmall) {
  CallPayload numbers = Push({kSharedBytesMin - 2, 1});
  numbers.answer_bytes = kSharedBytesMin - 1;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(HasNothing(Put(numbers)));
    EXPECT_TRUE(SaysNothing(call_)) << call_.ShortDebugString();
  }
}

TEST_F(SharedCallsTest, TheFirstLargeCallOffersMemoryAndTravelsInTheMessageItself) {
  Put(Push({1}));
  EXPECT_TRUE(HasNothing(Put(Push({kSharedBytesMin - 1, 1}))));
  ASSERT_TRUE(call_.has_shared_memory());
  EXPECT_FALSE(call_.has_values());
  EXPECT_FALSE(call_.has_room());
  EXPECT_EQ(call_.shared_memory().process(), static_cast<uint32_t>(getpid()));
  EXPECT_EQ(call_.shared_memory().bytes(), kMemoryBytes);
  const auto memory = SharedMemory::Attach(call_.shared_memory());
  EXPECT_TRUE(memory.ok()) << memory.status();
  for (int i = 0; i < 3; ++i) {  // Nobody knows yet whether it is taken.
    CallPayload numbers = Push({kLarge});
    numbers.answer_bytes = kLarge;
    EXPECT_TRUE(HasNothing(Put(numbers)));
    EXPECT_TRUE(SaysNothing(call_)) << call_.ShortDebugString();
  }
}

TEST_F(SharedCallsTest, APullWithALargeAnswerOffersMemoryToo) {
  EXPECT_TRUE(HasNothing(Put(Pull(kSharedBytesMin))));
  EXPECT_TRUE(call_.has_shared_memory());
  EXPECT_FALSE(call_.has_room());
}

TEST_F(SharedCallsTest, AnswersToOtherCallsSayNothingOfTheOffer) {
  Held offering = Put(Push({kLarge}));
  ASSERT_TRUE(call_.has_shared_memory());
  ASSERT_TRUE(calls_.Take(Outcome(v1::Answer::NO_OFFER), Payload(), {}).ok());
  Held later = Put(Push({kLarge}));
  EXPECT_TRUE(SaysNothing(call_)) << call_.ShortDebugString();
  ASSERT_TRUE(calls_.Take(Outcome(v1::Answer::ACCEPTED), Payload(), std::move(offering)).ok());
  ASSERT_TRUE(calls_.Take(Outcome(v1::Answer::NO_OFFER), Payload(), std::move(later)).ok());
  Put(Push({kLarge}));
  EXPECT_TRUE(call_.has_values());
}

TEST_F(SharedCallsTest, AnOfferIsTakenEvenIfTheCallFails) {
  Held offering = Put(Push({kLarge}));
  v1::Answer answer = Outcome(v1::Answer::ACCEPTED);
  answer.set_code(static_cast<uint32_t>(absl::StatusCode::kAborted));
  ASSERT_TRUE(calls_.Take(answer, Payload(), std::move(offering)).ok());
  Put(Push({kLarge}));
  EXPECT_TRUE(call_.has_values());
}

TEST_F(SharedCallsTest, ARefusalIsForGood) {
  Held offering = Put(Push({kLarge}));
  const v1::SharedMemoryOffer offer = call_.shared_memory();
  ASSERT_TRUE(SharedMemory::Attach(offer).ok());
  ASSERT_TRUE(calls_.Take(Outcome(v1::Answer::REFUSED), Payload(), std::move(offering)).ok());
  EXPECT_FALSE(SharedMemory::Attach(offer).ok()) << "it is of no use any more";
  for (const auto outcome : {v1::Answer::NO_OFFER, v1::Answer::ACCEPTED, v1::Answer::REFUSED}) {
    Held held = Put(Push({kLarge}));
    EXPECT_TRUE(HasNothing(held));
    EXPECT_TRUE(SaysNothing(call_)) << call_.ShortDebugString();
    ASSERT_TRUE(calls_.Take(Outcome(outcome), Payload(), std::move(held)).ok());
  }
}

TEST_F(SharedCallsTest, APsThatKnowsNothingOfOffersHasRefused) {
  Held offering = Put(Push({kLarge}));
  const v1::SharedMemoryOffer offer = call_.shared_memory();
  ASSERT_TRUE(calls_.Take({}, Payload(), std::move(offering)).ok());
  EXPECT_FALSE(SharedMemory::Attach(offer).ok()) << "it is of no use any more";
  EXPECT_TRUE(HasNothing(Put(Push({kLarge}))));
  EXPECT_TRUE(SaysNothing(call_)) << call_.ShortDebugString();
}

TEST_F(SharedCallsTest, StreamsOfAConnectionOfferNothingAfterARefusalOfOneOfThem) {
  const auto refused = std::make_shared<std::atomic<bool>>(false);
  SharedMemoryCalls first("ps 0", kMemoryBytes, refused);
  SharedMemoryCalls second("ps 0", kMemoryBytes, refused);
  SharedMemoryCalls third("ps 0", kMemoryBytes, refused);
  v1::Call call;
  Held accepted = first.Put(Push({kLarge}), &call);
  ASSERT_TRUE(first.Take(Outcome(v1::Answer::ACCEPTED), Payload(), std::move(accepted)).ok());
  Held turned_down = second.Put(Push({kLarge}), &call);
  EXPECT_TRUE(call.has_shared_memory());
  ASSERT_TRUE(second.Take(Outcome(v1::Answer::REFUSED), Payload(), std::move(turned_down)).ok());
  third.Put(Push({kLarge}), &call);
  EXPECT_TRUE(SaysNothing(call)) << call.ShortDebugString();
  first.Put(Push({kLarge}), &call);
  EXPECT_TRUE(call.has_values()) << "what is shared stays so";
}

TEST_F(SharedCallsTest, NothingIsTakenThatWasNotOffered) {
  ASSERT_TRUE(calls_.Take(Outcome(v1::Answer::ACCEPTED), Payload(), {}).ok());
  EXPECT_TRUE(HasNothing(Put(Push({kLarge}))));
  EXPECT_TRUE(call_.has_shared_memory());
  EXPECT_FALSE(call_.has_values());
}

TEST_F(SharedCallsTest, WithoutBytesNothingIsEverOffered) {
  SharedMemoryCalls none("ps 0", 0);
  CallPayload numbers = Push({kLarge});
  numbers.answer_bytes = kLarge;
  for (const auto outcome : {v1::Answer::NO_OFFER, v1::Answer::ACCEPTED}) {
    Held held = none.Put(numbers, &call_);
    EXPECT_TRUE(HasNothing(held));
    EXPECT_TRUE(SaysNothing(call_)) << call_.ShortDebugString();
    ASSERT_TRUE(none.Take(Outcome(outcome), Payload(), std::move(held)).ok());
  }
}

TEST_F(SharedCallsTest, AnAnswersPayloadComesThroughWithoutSharing) {
  const std::string text = Text(1'000, 9);
  const auto taken = calls_.Take({}, Payload({grpc::Slice(text)}), Put(Pull(text.size())));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(TextOf(*taken), text);
}

// The memory is shared, and `ps_` is what the ps has of it.
class SharingTest : public SharedCallsTest {
 protected:
  void SetUp() override {
    Held offering = Put(Pull(kLarge));
    ASSERT_TRUE(call_.has_shared_memory());
    auto memory = SharedMemory::Attach(call_.shared_memory());
    ASSERT_TRUE(memory.ok()) << memory.status();
    ps_ = *std::move(memory);
    ASSERT_TRUE(calls_.Take(Outcome(v1::Answer::ACCEPTED), Payload(), std::move(offering)).ok());
  }

  bool IsInside(const v1::SharedRange& range) const {
    return range.offset() >= kSharedMemoryHead && range.bytes() <= ps_->size() &&
           range.offset() <= ps_->size() - range.bytes();
  }
  std::string Read(const v1::SharedRange& range) const {
    return std::string(reinterpret_cast<const char*>(ps_->data() + range.offset()), range.bytes());
  }
  void Write(const std::string& text, const v1::SharedRange& room) {
    ASSERT_TRUE(IsInside(room) && text.size() <= room.bytes()) << room.ShortDebugString();
    std::memcpy(ps_->data() + room.offset(), text.data(), text.size());
  }
  // Where the next call's values or room are.
  uint64_t NextValues(size_t bytes = kLarge) {
    Held held = Put(Push({bytes}));
    EXPECT_TRUE(call_.has_values());
    EXPECT_TRUE(calls_.Take({}, Payload(), std::move(held)).ok());
    return call_.values().offset();
  }
  uint64_t NextRoom(uint64_t bytes = kLarge) {
    Held held = Put(Pull(bytes));
    EXPECT_TRUE(call_.has_room());
    EXPECT_TRUE(calls_.Take({}, Payload(), std::move(held)).ok());
    return call_.room().offset();
  }

  std::shared_ptr<SharedMemory> ps_;
};

TEST_F(SharingTest, LargeValuesLieInTheMemory) {
  const CallPayload numbers = Push({1, kSharedBytesMin, 0, 777});
  const Held held = Put(numbers);
  EXPECT_FALSE(call_.has_shared_memory()) << "it is offered once";
  EXPECT_FALSE(call_.has_room());
  ASSERT_TRUE(call_.has_values());
  EXPECT_EQ(call_.values().bytes(), kSharedBytesMin + 778);
  ASSERT_TRUE(IsInside(call_.values())) << call_.ShortDebugString();
  EXPECT_EQ(Read(call_.values()), TextOf(numbers.values));
  ASSERT_TRUE(held.values.has_value());
  EXPECT_EQ(held.values->offset, call_.values().offset());
  EXPECT_EQ(held.values->bytes, call_.values().bytes());
  EXPECT_FALSE(held.room.has_value());
}

TEST_F(SharingTest, SmallValuesTravelInTheMessage) {
  CallPayload numbers = Push({kSharedBytesMin - 1});
  numbers.answer_bytes = kSharedBytesMin - 1;
  EXPECT_TRUE(HasNothing(Put(numbers)));
  EXPECT_TRUE(SaysNothing(call_)) << call_.ShortDebugString();
  Put(Push({kSharedBytesMin}));
  EXPECT_TRUE(call_.has_values());
  Put(Pull(kSharedBytesMin));
  EXPECT_TRUE(call_.has_room());
}

TEST_F(SharingTest, APushThatPullsHasValuesAndRoom) {
  CallPayload numbers = Push({kLarge});
  numbers.answer_bytes = kLarge + 1;
  Held held = Put(numbers);
  ASSERT_TRUE(call_.has_values() && call_.has_room());
  EXPECT_TRUE(IsInside(call_.values()) && IsInside(call_.room()));
  EXPECT_FALSE(Overlap(call_.values(), call_.room())) << call_.ShortDebugString();
  EXPECT_EQ(call_.room().bytes(), kLarge + 1);
  const std::string text = Text(kLarge + 1, 9);
  ASSERT_NO_FATAL_FAILURE(Write(text, call_.room()));
  EXPECT_EQ(Read(call_.values()), TextOf(numbers.values));
  const auto taken = calls_.Take(WithSharedBytes(text.size()), Payload(), std::move(held));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(TextOf(*taken), text);
}

TEST_F(SharingTest, APullGetsJustWhatThePsPutIntoItsRoom) {
  for (const size_t bytes : {size_t{1}, kSharedBytesMin, kLarge}) {
    Held held = Put(Pull(kLarge));
    ASSERT_TRUE(call_.has_room());
    EXPECT_FALSE(call_.has_values());
    EXPECT_EQ(call_.room().bytes(), kLarge);
    const std::string text = Text(bytes, 9);
    ASSERT_NO_FATAL_FAILURE(Write(text, call_.room()));
    const auto taken = calls_.Take(WithSharedBytes(bytes), Payload(), std::move(held));
    ASSERT_TRUE(taken.ok()) << taken.status();
    EXPECT_EQ(TextOf(*taken), text);
  }
}

TEST_F(SharingTest, ARoomIsFreeAgainWhenNothingIsLeftOfThePayload) {
  Held held = Put(Pull(kLarge));
  const v1::SharedRange room = call_.room();
  const std::string text = Text(kLarge, 9);
  ASSERT_NO_FATAL_FAILURE(Write(text, room));
  auto taken = calls_.Take(WithSharedBytes(kLarge), Payload(), std::move(held));
  ASSERT_TRUE(taken.ok()) << taken.status();
  std::optional<Payload> rest = *std::move(taken);
  std::optional<Payload> first = rest->Take(100);
  taken = absl::CancelledError("moved");
  EXPECT_NE(NextRoom(), room.offset());
  EXPECT_NE(NextValues(), room.offset());
  rest.reset();
  EXPECT_NE(NextRoom(), room.offset());
  EXPECT_EQ(TextOf(*first), text.substr(0, 100));
  first.reset();
  EXPECT_EQ(NextRoom(), room.offset());
}

TEST_F(SharingTest, ARoomThatWasNotUsedIsFreeAgainAtOnce) {
  const std::string text = Text(kLarge, 9);
  const uint64_t offset = NextRoom();
  Held held = Put(Pull(kLarge));
  EXPECT_EQ(call_.room().offset(), offset);
  const auto taken = calls_.Take({}, Payload({grpc::Slice(text)}), std::move(held));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(TextOf(*taken), text) << "it came in the message";
  held = Put(Pull(kLarge));
  EXPECT_EQ(call_.room().offset(), offset);
  v1::Answer failed;
  failed.set_code(static_cast<uint32_t>(absl::StatusCode::kAborted));
  ASSERT_TRUE(calls_.Take(failed, Payload(), std::move(held)).ok());
  EXPECT_EQ(NextRoom(kRangesBytes), offset) << "all is free";
}

TEST_F(SharingTest, ValuesAreFreeAgainAfterTheAnswer) {
  Held first = Put(Push({kLarge}));
  const v1::SharedRange first_values = call_.values();
  const CallPayload numbers = Push({1, kLarge});
  Held second = Put(numbers);
  const v1::SharedRange second_values = call_.values();
  EXPECT_FALSE(Overlap(first_values, second_values));
  ASSERT_TRUE(calls_.Take({}, Payload(), std::move(first)).ok());
  EXPECT_EQ(NextValues(), first_values.offset());
  EXPECT_EQ(Read(second_values), TextOf(numbers.values));
  v1::Answer failed;
  failed.set_code(static_cast<uint32_t>(absl::StatusCode::kAborted));
  ASSERT_TRUE(calls_.Take(failed, Payload(), std::move(second)).ok());
  EXPECT_EQ(NextValues(kRangesBytes), first_values.offset()) << "all is free";
}

TEST_F(SharingTest, ACallThatIsNeverAnsweredKeepsItsRanges) {
  v1::SharedRange values, room;
  {
    CallPayload numbers = Push({kLarge});
    numbers.answer_bytes = kLarge;
    const Held lost = Put(numbers);
    ASSERT_TRUE(lost.values.has_value() && lost.room.has_value());
    values = call_.values();
    room = call_.room();
  }
  // Others get all that there is but these.
  uint64_t left = kRangesBytes - 2 * (kLarge + 63);
  for (Put(Push({kSharedBytesMin})); call_.has_values(); Put(Push({kSharedBytesMin}))) {
    EXPECT_FALSE(Overlap(call_.values(), values)) << call_.ShortDebugString();
    EXPECT_FALSE(Overlap(call_.values(), room)) << call_.ShortDebugString();
    left -= kSharedBytesMin;
  }
  EXPECT_LT(left, kSharedBytesMin);
}

TEST_F(SharingTest, APayloadOutlivesTheStream) {
  std::optional<SharedMemoryCalls> calls;
  calls.emplace("ps 1", kMemoryBytes);
  v1::Call call;
  Held offering = calls->Put(Pull(kLarge), &call);
  const v1::SharedMemoryOffer offer = call.shared_memory();
  auto memory = SharedMemory::Attach(offer);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ps_ = *std::move(memory);
  ASSERT_TRUE(calls->Take(Outcome(v1::Answer::ACCEPTED), Payload(), std::move(offering)).ok());
  Held held = calls->Put(Pull(kLarge), &call);
  const std::string text = Text(kLarge, 9);
  ASSERT_NO_FATAL_FAILURE(Write(text, call.room()));
  auto taken = calls->Take(WithSharedBytes(kLarge), Payload(), std::move(held));
  ASSERT_TRUE(taken.ok()) << taken.status();
  calls.reset();
  ps_.reset();
  EXPECT_EQ(TextOf(*taken), text);
  EXPECT_TRUE(SharedMemory::Attach(offer).ok());
  taken = absl::CancelledError("gone");
  EXPECT_FALSE(SharedMemory::Attach(offer).ok()) << "the memory goes with the last that reads it";
}

TEST_F(SharingTest, AnAnswerThatContradictsItselfIsAnError) {
  const auto refused = [&](const CallPayload& numbers, uint64_t shared_bytes, size_t message_bytes) {
    Held held = Put(numbers);
    Payload payload;
    if (message_bytes > 0) payload = Payload({grpc::Slice(Text(message_bytes, 1))});
    const absl::Status status =
        calls_.Take(WithSharedBytes(shared_bytes), std::move(payload), std::move(held)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(shared_bytes, " bytes in shared memory and ",
                                                                      message_bytes, " in the message")));
  };
  refused(Push({1}), 1, 0);
  refused(Push({kLarge}), kLarge, 0);
  refused(Pull(kLarge), kLarge + 1, 0);
  refused(Pull(kLarge), UINT64_MAX, 0);
  refused(Pull(kLarge), kLarge, 1);
  refused(Pull(kLarge), 1, kLarge);
}

TEST_F(SharingTest, WhatDoesNotFitTravelsInTheMessage) {
  Put(Push({kRangesBytes + 1}));
  EXPECT_TRUE(SaysNothing(call_)) << call_.ShortDebugString();
  Held most = Put(Push({kRangesBytes - kSharedBytesMin}));
  ASSERT_TRUE(call_.has_values());
  CallPayload numbers = Push({kLarge});
  numbers.answer_bytes = kSharedBytesMin;
  Held held = Put(numbers);
  EXPECT_FALSE(call_.has_values());
  EXPECT_FALSE(held.values.has_value());
  EXPECT_TRUE(call_.has_room()) << "what fits is shared";
  Held none = Put(Push({kSharedBytesMin}));
  EXPECT_TRUE(SaysNothing(call_)) << call_.ShortDebugString();
  ASSERT_TRUE(calls_.Take({}, Payload(), std::move(none)).ok());
  ASSERT_TRUE(calls_.Take({}, Payload(), std::move(held)).ok());
  ASSERT_TRUE(calls_.Take({}, Payload(), std::move(most)).ok());
  EXPECT_EQ(NextValues(kRangesBytes), kSharedMemoryHead) << "all is free";
}

// A call that is sent again comes with what it said to the stream before.
TEST_F(SharingTest, ACallForgetsWhatItSaidToAnotherStream) {
  CallPayload numbers = Push({kLarge});
  numbers.answer_bytes = kLarge;
  v1::Call sent;
  const Held held = calls_.Put(numbers, &sent);
  ASSERT_TRUE(sent.has_values() && sent.has_room());
  sent.mutable_shared_memory()->set_bytes(1);
  sent.set_id(77);
  for (const CallPayload& small : {Push({1}), Pull(1)}) {
    v1::Call call = sent;
    EXPECT_TRUE(HasNothing(calls_.Put(small, &call)));
    EXPECT_TRUE(SaysNothing(call)) << call.ShortDebugString();
    EXPECT_EQ(call.id(), 77u);
  }
  v1::Call call = sent;
  SharedMemoryCalls none("ps 1", 0);
  none.Put(numbers, &call);
  EXPECT_TRUE(SaysNothing(call)) << call.ShortDebugString();
  SharedMemoryCalls another("ps 2", kMemoryBytes);
  call = sent;
  another.Put(numbers, &call);
  EXPECT_EQ(call.shared_memory().bytes(), kMemoryBytes);
  EXPECT_FALSE(call.has_values());
  EXPECT_FALSE(call.has_room());
  call = sent;
  another.Put(numbers, &call);  // Offered, and not answered yet.
  EXPECT_TRUE(SaysNothing(call)) << call.ShortDebugString();
  call = sent;
  calls_.Put(Pull(kLarge), &call);
  EXPECT_FALSE(call.has_values());
  EXPECT_FALSE(call.has_shared_memory());
  ASSERT_TRUE(call.has_room());
  EXPECT_FALSE(Overlap(call.room(), sent.room()));
}

TEST_F(SharingTest, CallsOfSeveralThreadsDoNotDisturbEachOther) {
  constexpr int kThreads = 3;
  constexpr size_t kBytes = kSharedBytesMin;
  std::latch ready(kThreads);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      CallPayload numbers;
      const std::string pushed = Text(kBytes, static_cast<uint8_t>(10 * thread));
      const std::string pulled = Text(kBytes, static_cast<uint8_t>(10 * thread + 1));
      numbers.values.emplace_back(pushed);
      numbers.answer_bytes = kBytes;
      ready.arrive_and_wait();
      for (int round = 0; round < 20; ++round) {
        v1::Call call;
        Held held = calls_.Put(numbers, &call);
        if (!call.has_values() || !call.has_room()) {
          ++wrong;
          return;
        }
        std::memcpy(ps_->data() + call.room().offset(), pulled.data(), kBytes);
        if (Read(call.values()) != pushed) ++wrong;
        const auto taken = calls_.Take(WithSharedBytes(kBytes), Payload(), std::move(held));
        if (!taken.ok() || TextOf(*taken) != pulled) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(NextValues(kRangesBytes), kSharedMemoryHead) << "all is free";
}

}  // namespace
}  // namespace lodestone::worker
