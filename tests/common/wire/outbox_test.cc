#include "common/wire/outbox.h"

#include <string>
#include <vector>

#include "common/base/limits.h"
#include "common/wire/message.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.pb.h"

namespace lodestone {
namespace {

// A call with `bytes` of payload.
Frame Call(uint64_t id, size_t bytes) {
  v1::Call call;
  call.set_id(id);
  call.set_payload_bytes(bytes);
  return Frame(call, {grpc::Slice(std::string(bytes, static_cast<char>('a' + id % 26)))}, id);
}

v1::ExchangeRequest Unpack(Outbox* outbox, std::vector<uint64_t>* tags) {
  const grpc::ByteBuffer buffer = outbox->Pack(tags);
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  v1::ExchangeRequest message;
  EXPECT_TRUE(message.ParseFromString(bytes));
  return message;
}

TEST(Outbox, BytesInSharedMemoryCountTowardsThePackingLimitAndTakeNoRoom) {
  Outbox outbox(10'000);
  for (uint64_t id = 0; id < 6; ++id) {
    v1::Call call;
    call.set_id(id);
    outbox.Add(Frame(call, {}, id, id < 4 ? 4'000 : 20'000));
  }
  EXPECT_LT(outbox.bytes(), 4'000u);
  EXPECT_GE(outbox.weight(), 56'000u);
  std::vector<std::vector<uint64_t>> messages;
  while (!outbox.empty()) {
    messages.emplace_back();
    EXPECT_EQ(Unpack(&outbox, &messages.back()).payload().size(), 0u);
  }
  EXPECT_EQ(messages, (std::vector<std::vector<uint64_t>>{{0, 1}, {2, 3}, {4}, {5}}));
  EXPECT_EQ(outbox.bytes(), 0u);
  EXPECT_EQ(outbox.weight(), 0u);
  outbox.Add(Frame(v1::Call(), {}, 7, 100));
  outbox.Clear();
  EXPECT_EQ(outbox.weight(), 0u);
}

TEST(Outbox, PacksSmallItemsInOrderAndPaysNoMoreThanItSays) {
  Outbox outbox(10'000);
  for (uint64_t id = 0; id < 40; ++id) outbox.Add(Call(id, 900));
  EXPECT_GE(outbox.bytes(), 40 * 900u);
  uint64_t next = 0;
  size_t messages = 0;
  for (; !outbox.empty(); ++messages) {
    std::vector<uint64_t> tags;
    const v1::ExchangeRequest message = Unpack(&outbox, &tags);
    EXPECT_LE(message.ByteSizeLong(), 10'000u);
    ASSERT_EQ(static_cast<size_t>(message.calls_size()), tags.size());
    std::string expected;
    for (int i = 0; i < message.calls_size(); ++i, ++next) {
      EXPECT_EQ(message.calls(i).id(), next);
      EXPECT_EQ(tags[i], next);
      expected.append(900, static_cast<char>('a' + next % 26));
    }
    EXPECT_EQ(message.payload(), expected);
  }
  EXPECT_EQ(next, 40u);
  EXPECT_LT(messages, 8u);
  EXPECT_EQ(outbox.bytes(), 0u);
}

TEST(Outbox, AnItemThatIsTooLargeToBePackedGoesAlone) {
  Outbox outbox(1'000);
  outbox.Add(Call(1, 10));
  EXPECT_FALSE(outbox.full());
  outbox.Add(Call(2, 5'000));
  EXPECT_TRUE(outbox.full());
  outbox.Add(Call(3, 10));
  std::vector<uint64_t> tags;
  for (uint64_t id = 1; id <= 3; ++id) {
    Unpack(&outbox, &tags);
    EXPECT_EQ(tags, std::vector<uint64_t>{id});
  }
  EXPECT_TRUE(outbox.empty());
}

TEST(Outbox, AMessageHoldsNoMoreCallsThanAPsTakes) {
  Outbox outbox(64 << 20);
  for (uint64_t id = 0; id <= limits::kExchangeCallsMax; ++id) outbox.Add(Call(id, 0));
  std::vector<uint64_t> tags;
  EXPECT_EQ(static_cast<size_t>(Unpack(&outbox, &tags).calls_size()), limits::kExchangeCallsMax);
  EXPECT_EQ(Unpack(&outbox, &tags).calls_size(), 1);
}

}  // namespace
}  // namespace lodestone
