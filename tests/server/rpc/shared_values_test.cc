#include "server/rpc/shared_values.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/wire/shared_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSize = kSharedMemoryHead + 1000;
constexpr uint64_t kAt = kSharedMemoryHead + 100;  // Somewhere in the middle.

// Memory as a client makes it, whose bytes differ from their neighbours.
std::shared_ptr<SharedMemory> MakeMemory() {
  auto memory = SharedMemory::Make(kSize);
  LODESTONE_CHECK(memory.ok());
  for (uint64_t i = kSharedMemoryHead; i < kSize; ++i) (*memory)->data()[i] = static_cast<uint8_t>(i * 7);
  return *std::move(memory);
}

v1::SharedRange RangeOf(uint64_t offset, uint64_t bytes) {
  v1::SharedRange range;
  range.set_offset(offset);
  range.set_bytes(bytes);
  return range;
}

v1::Call PushOf(uint64_t offset, uint64_t bytes) {
  v1::Call call;
  call.mutable_push();
  *call.mutable_values() = RangeOf(offset, bytes);
  return call;
}

v1::Call PullInto(uint64_t offset, uint64_t bytes) {
  v1::Call call;
  call.mutable_pull();
  *call.mutable_room() = RangeOf(offset, bytes);
  return call;
}

Payload PayloadOf(const std::string& bytes) {
  std::vector<grpc::Slice> slices;
  slices.emplace_back(bytes);
  return Payload(std::move(slices));
}

std::string BytesOf(const Payload& payload) {
  std::string bytes(payload.size(), '\0');
  payload.bytes().CopyTo(bytes.data());
  return bytes;
}

std::vector<grpc::Slice> SlicesOf(const std::vector<std::string>& pieces) {
  std::vector<grpc::Slice> slices;
  for (const std::string& piece : pieces) slices.emplace_back(piece);
  return slices;
}

// A ps that shares memory, in either way, and a client's memory.
class SharedValuesTest : public ::testing::TestWithParam<SharedUse> {
 protected:
  SharedValuesTest() { values_.BeginMessage(GetParam()); }

  void Share() { ASSERT_EQ(values_.Accept(memory_->Offer()), v1::Answer::ACCEPTED); }
  // As the client sees them.
  std::string BytesAt(uint64_t offset, uint64_t bytes) const {
    return std::string(reinterpret_cast<const char*>(memory_->data() + offset), bytes);
  }
  // As the only call of a message.
  absl::Status Take(const v1::Call& call) {
    values_.BeginMessage(GetParam());
    RequestPayload numbers;
    return values_.Take(call, &numbers);
  }

  std::shared_ptr<SharedMemory> memory_ = MakeMemory();
  SharedValues values_{"a client"};
};

INSTANTIATE_TEST_SUITE_P(Uses, SharedValuesTest, ::testing::Values(SharedUse::kCopied, SharedUse::kRead),
                         [](const auto& info) { return info.param == SharedUse::kRead ? "Read" : "Copied"; });

TEST_P(SharedValuesTest, MemoryIsAcceptedOnceAndTheFirstStays) {
  Share();
  const std::shared_ptr<SharedMemory> other = MakeMemory();
  EXPECT_EQ(values_.Accept(other->Offer()), v1::Answer::REFUSED);
  EXPECT_EQ(values_.Accept(memory_->Offer()), v1::Answer::REFUSED);
  memory_->data()[kAt] = 'm';
  other->data()[kAt] = 'o';
  RequestPayload numbers;
  const absl::Status status = values_.Take(PushOf(kAt, 1), &numbers);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(BytesOf(numbers.payload), "m");
}

TEST_P(SharedValuesTest, AMessagesCallsHaveNoMoreThanTheMemory) {
  Share();
  const auto take = [this](uint64_t bytes) {
    RequestPayload numbers;
    return values_.Take(PushOf(kSharedMemoryHead, bytes), &numbers);
  };
  // Ranges that do not overlap can't come to more; those of a thousand calls that do would take a thousand copies.
  uint64_t taken = 0;
  for (; taken + 900 <= kSize; taken += 900) EXPECT_TRUE(take(900).ok()) << taken;
  const absl::Status status = take(900);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("overlap"));
  EXPECT_TRUE(take(kSize - taken).ok());
  values_.BeginMessage(GetParam());
  EXPECT_TRUE(take(900).ok());
}

TEST_P(SharedValuesTest, ABadOfferIsRefusedAndNoOtherIsTakenThen) {
  const std::vector<std::function<void(v1::SharedMemoryOffer*)>> changes = {
      [](auto* offer) { offer->set_secret_low(~offer->secret_low()); },
      [](auto* offer) { offer->set_secret_high(~offer->secret_high()); },
      [](auto* offer) { offer->set_bytes(offer->bytes() + 1); },
      [](auto* offer) { offer->set_bytes(kSharedMemoryHead); },
      [](auto* offer) { offer->set_bytes(UINT64_MAX); },
      [](auto* offer) { offer->set_file(UINT32_MAX); },
      [](auto* offer) { offer->set_process(0); },
      [](auto* offer) { offer->Clear(); },
  };
  for (const auto& change : changes) {
    v1::SharedMemoryOffer offer = memory_->Offer();
    change(&offer);
    SharedValues values("a client");
    values.BeginMessage(GetParam());
    EXPECT_EQ(values.Accept(offer), v1::Answer::REFUSED) << offer.DebugString();
    EXPECT_EQ(values.Accept(memory_->Offer()), v1::Answer::REFUSED) << offer.DebugString();
    RequestPayload numbers;
    EXPECT_EQ(values.Take(PushOf(kAt, 8), &numbers).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(SharedValuesWithoutUseTest, APsThatSharesNothingRefusesEveryOffer) {
  const std::shared_ptr<SharedMemory> memory = MakeMemory();
  SharedValues values("a client");
  for (int times = 0; times < 2; ++times) EXPECT_EQ(values.Accept(memory->Offer()), v1::Answer::REFUSED);
  RequestPayload numbers;
  EXPECT_EQ(values.Take(PushOf(kAt, 8), &numbers).code(), absl::StatusCode::kInvalidArgument);
  SharedValues::Room room;
  EXPECT_EQ(values.TakeRoom(PullInto(kAt, 8), &room).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(room.memory, nullptr);
}

TEST_P(SharedValuesTest, WithoutMemoryCallsCannotReferToItAndOthersAreAsTheyCame) {
  RequestPayload numbers = PayloadOf("in the message");
  SharedValues::Room room;
  v1::Call call;
  call.mutable_push();
  EXPECT_TRUE(values_.Take(call, &numbers).ok());
  EXPECT_TRUE(values_.TakeRoom(call, &room).ok());
  EXPECT_EQ(BytesOf(numbers.payload), "in the message");
  EXPECT_EQ(room.memory, nullptr);

  const absl::Status status = Take(PushOf(kAt, 8));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("this stream shares none"));
  EXPECT_EQ(values_.TakeRoom(PullInto(kAt, 8), &room).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(room.memory, nullptr);
}

TEST_P(SharedValuesTest, GradientsAreReadWhereTheyLieOrCopiedAsTheyCome) {
  Share();
  RequestPayload numbers;
  const absl::Status status = values_.Take(PushOf(kAt, 100), &numbers);
  ASSERT_TRUE(status.ok()) << status;
  const std::string before = BytesAt(kAt, 100);
  EXPECT_EQ(BytesOf(numbers.payload), before);
  memory_->data()[kAt + 50] ^= 0xff;
  EXPECT_EQ(BytesOf(numbers.payload), GetParam() == SharedUse::kCopied ? before : BytesAt(kAt, 100));
}

TEST_P(SharedValuesTest, OnlyRangesBetweenHeadAndEndAreTaken) {
  Share();
  struct Case {
    uint64_t offset;
    uint64_t bytes;
    bool good;
  };
  for (const Case& range : std::vector<Case>{
           {kSharedMemoryHead, 0, true},
           {kSharedMemoryHead, 1, true},
           {kSharedMemoryHead, kSize - kSharedMemoryHead, true},
           {kSize - 1, 1, true},
           {kSize, 0, true},
           {0, 0, false},
           {0, 16, false},
           {0, kSize, false},
           {kSharedMemoryHead - 1, 2, false},
           {kSharedMemoryHead, kSize - kSharedMemoryHead + 1, false},
           {kSize - 1, 2, false},
           {kSize, 1, false},
           {kSize + 1, 0, false},
           {kSharedMemoryHead, UINT64_MAX, false},
           {kAt, UINT64_MAX - kAt + 1, false},                      // The end wraps to 0, …
           {kAt, UINT64_MAX - kAt + 1 + kSharedMemoryHead, false},  // … and to the head's.
           {UINT64_MAX, 1, false},
           {UINT64_MAX, UINT64_MAX, false},
           {uint64_t{1} << 63, uint64_t{1} << 63, false},
       }) {
    SCOPED_TRACE(absl::StrCat(range.bytes, " bytes at ", range.offset));
    RequestPayload numbers;
    const absl::Status taken = values_.Take(PushOf(range.offset, range.bytes), &numbers);
    SharedValues::Room room;
    const absl::Status room_taken = values_.TakeRoom(PullInto(range.offset, range.bytes), &room);
    if (range.good) {
      EXPECT_TRUE(taken.ok()) << taken;
      EXPECT_EQ(BytesOf(numbers.payload), BytesAt(range.offset, range.bytes));
      EXPECT_TRUE(room_taken.ok()) << room_taken;
      ASSERT_NE(room.memory, nullptr);
      EXPECT_EQ(room.offset, range.offset);
      EXPECT_EQ(room.bytes, range.bytes);
      continue;
    }
    for (const absl::Status& status : {taken, room_taken}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(range.bytes, " bytes at ", range.offset)));
    }
    EXPECT_EQ(numbers.payload.size(), 0);
    EXPECT_EQ(room.memory, nullptr);
  }
}

TEST_P(SharedValuesTest, ValuesLieInTheMessageOrInTheMemoryNotInBoth) {
  Share();
  RequestPayload numbers = PayloadOf("four");
  const absl::Status status = values_.Take(PushOf(kAt, 8), &numbers);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("4 bytes of them in the message"));
  EXPECT_EQ(BytesOf(numbers.payload), "four");
}

TEST_P(SharedValuesTest, OnlyPushesHaveValues) {
  Share();
  const std::vector<std::function<void(v1::Call*)>> others = {
      [](auto* call) { call->mutable_pull(); },
      [](auto* call) { call->mutable_subscribe(); },
      [](auto* call) { call->mutable_ensure_tables(); },
      [](auto* call) { call->clear_request(); },
  };
  v1::Call call = PushOf(kAt, 8);
  EXPECT_TRUE(Take(call).ok());
  call.mutable_push_pull();
  EXPECT_TRUE(Take(call).ok());
  for (const auto& change : others) {
    change(&call);
    const absl::Status status = Take(call);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << call.DebugString();
    EXPECT_THAT(std::string(status.message()), HasSubstr("no push"));
  }
}

TEST_P(SharedValuesTest, RowsNeedTheirKeysInAListOfTheirOwn) {
  Share();
  // In a push, and in either half of a push_pull; behind a part of a dense table.
  const std::vector<std::function<v1::Part*(v1::Call*)>> places = {
      [](auto* call) { return call->mutable_push()->add_parts(); },
      [](auto* call) { return call->mutable_push_pull()->mutable_push()->add_parts(); },
      [](auto* call) { return call->mutable_push_pull()->mutable_pull()->add_parts(); },
  };
  for (const auto& add_part : places) {
    v1::Call call = PushOf(kAt, 8);
    add_part(&call)->add_blocks(0);
    EXPECT_TRUE(Take(call).ok());
    add_part(&call)->set_row_count(1);
    const absl::Status status = Take(call);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << call.DebugString();
    EXPECT_THAT(std::string(status.message()), HasSubstr("whose keys are no list"));

    RequestPayload numbers;
    numbers.keys = PayloadOf("8 bytes.");
    EXPECT_TRUE(values_.Take(call, &numbers).ok());
    EXPECT_EQ(BytesOf(numbers.payload), BytesAt(kAt, 8));
    EXPECT_EQ(BytesOf(*numbers.keys), "8 bytes.");
  }
}

TEST_P(SharedValuesTest, ValuesGoIntoTheirRoomOneAfterTheOtherAndNowhereElse) {
  Share();
  const std::string before = BytesAt(kSharedMemoryHead, kSize - kSharedMemoryHead);
  SharedValues::Room room;
  ASSERT_TRUE(values_.TakeRoom(PullInto(kAt, 10), &room).ok());
  std::vector<grpc::Slice> values = SlicesOf({"abc", "", "defghij"});  // Just fits.
  EXPECT_EQ(room.Put(&values), 10);
  EXPECT_TRUE(values.empty());
  std::string after = before;
  after.replace(kAt - kSharedMemoryHead, 10, "abcdefghij");
  EXPECT_EQ(BytesAt(kSharedMemoryHead, kSize - kSharedMemoryHead), after);
}

TEST_P(SharedValuesTest, ValuesThatDoNotFitStayWhereTheyAre) {
  Share();
  const std::string before = BytesAt(kSharedMemoryHead, kSize - kSharedMemoryHead);
  SharedValues::Room room;
  ASSERT_TRUE(values_.TakeRoom(PullInto(kAt, 10), &room).ok());
  std::vector<grpc::Slice> values = SlicesOf({"abc", "defghijk"});
  EXPECT_EQ(room.Put(&values), 0);
  EXPECT_EQ(SharedValues::Room().Put(&values), 0);
  ASSERT_EQ(values.size(), 2);
  EXPECT_EQ(BytesOf(Payload(values)), "abcdefghijk");
  EXPECT_EQ(BytesAt(kSharedMemoryHead, kSize - kSharedMemoryHead), before);
}

TEST_P(SharedValuesTest, OnlyValuesThatAreCopiedCountAsCopied) {
  Share();
  EXPECT_EQ(values_.CopiedBytes(PushOf(kAt, 100)), GetParam() == SharedUse::kCopied ? 100 : 0);
  EXPECT_EQ(values_.CopiedBytes(PullInto(kAt, 100)), 0);
}

TEST_P(SharedValuesTest, TheMemoryStaysForAsLongAsACallUsesIt) {
  const std::string written = BytesAt(kAt, 100);
  RequestPayload numbers;
  SharedValues::Room room;
  {
    SharedValues values("a client");
    values.BeginMessage(GetParam());
    ASSERT_EQ(values.Accept(memory_->Offer()), v1::Answer::ACCEPTED);
    ASSERT_TRUE(values.Take(PushOf(kAt, 100), &numbers).ok());
    ASSERT_TRUE(values.TakeRoom(PullInto(kAt + 100, 3), &room).ok());
  }
  memory_.reset();  // The client is gone as well.
  EXPECT_EQ(BytesOf(numbers.payload), written);
  std::vector<grpc::Slice> values = SlicesOf({"abc"});
  EXPECT_EQ(room.Put(&values), 3);
  EXPECT_EQ(std::memcmp(room.memory->data() + room.offset, "abc", 3), 0);

  // And no longer.
  const std::weak_ptr<SharedMemory> attached = room.memory;
  room = SharedValues::Room();
  EXPECT_EQ(attached.expired(), GetParam() == SharedUse::kCopied);
  EXPECT_EQ(BytesOf(numbers.payload), written);
  numbers = RequestPayload();
  EXPECT_TRUE(attached.expired());
}

}  // namespace
}  // namespace lodestone::server
