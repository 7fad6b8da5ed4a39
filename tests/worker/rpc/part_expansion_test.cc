#include "worker/rpc/part_expansion.h"

#include <string>
#include <vector>

#include "common/wire/outbox.h"
#include "gtest/gtest.h"
#include "worker/rpc/frame_codec.h"

namespace lodestone::worker {
namespace {

constexpr size_t kDim = 2;

// A push of a dense block and of rows of three shards, 2, 0 and 1 of them, and a pull of rows of two shards, 1 each.
struct Example {
  Example() {
    v1::PushRequest& push = *call.mutable_push_pull()->mutable_push();
    push.set_sequence(5);
    v1::Part* part = push.add_parts();
    part->set_shard(4);
    part->set_table(1);
    part->add_blocks(3);
    part = push.add_parts();
    part->set_table(2);
    part->set_more(v1::Part::FOR_SHARD);
    for (const uint32_t shard : {0, 1, 3}) part->add_shards(shard);
    for (const uint32_t rows : {2, 0, 1}) part->add_row_counts(rows);
    for (int i = 0; i < 3; ++i) part->add_read_versions(UINT64_MAX - i);  // As long as any.
    part = call.mutable_push_pull()->mutable_pull()->add_parts();
    part->set_table(2);
    for (const uint32_t shard : {0, 3}) part->add_shards(shard);
    for (int i = 0; i < 2; ++i) part->add_row_counts(1);
    payload.keys = grpc::Slice("AAAAAAAABBBBBBBBCCCCCCCCDDDDDDDDEEEEEEEE");
    payload.values = {grpc::Slice("dense..."), grpc::Slice("aaaaaaaabbbbbbbbcccccccc")};
    payload.parts = {{0, 8}, {3 * sizeof(Key), 3 * kDim * sizeof(float)}, {2 * sizeof(Key), 0}};
  }

  v1::Call call;
  CallPayload payload;
};

TEST(ExpandCall, MakesAPartForEachShard) {
  Example example;
  const v1::Call before = example.call;
  ExpandCall(&example.call, &example.payload.parts);
  const Parts& pushed = example.call.push_pull().push().parts();
  ASSERT_EQ(pushed.size(), 4);
  EXPECT_EQ(pushed[0].SerializeAsString(), before.push_pull().push().parts(0).SerializeAsString());
  EXPECT_EQ(example.call.push_pull().push().sequence(), 5);
  const uint32_t shards[] = {0, 1, 3};
  const uint32_t rows[] = {2, 0, 1};
  for (int i = 0; i < 3; ++i) {
    const v1::Part& part = pushed[i + 1];
    EXPECT_EQ(part.shard(), shards[i]);
    EXPECT_EQ(part.row_count(), rows[i]);
    EXPECT_EQ(part.table(), 2);
    EXPECT_EQ(part.more(), v1::Part::FOR_SHARD);
    EXPECT_EQ(part.shards_size() + part.row_counts_size(), 0);
    ASSERT_EQ(part.read_versions_size(), 1);
    EXPECT_EQ(part.read_versions(0), UINT64_MAX - i);
  }
  EXPECT_EQ(example.call.push_pull().pull().parts_size(), 2);
  const std::vector<CallPayload::PartSizes>& sizes = example.payload.parts;
  ASSERT_EQ(sizes.size(), 6);
  const uint64_t key_bytes[] = {0, 16, 0, 8, 8, 8};
  const uint64_t value_bytes[] = {8, 16, 0, 8, 0, 0};
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(sizes[i].key_bytes, key_bytes[i]) << i;
    EXPECT_EQ(sizes[i].value_bytes, value_bytes[i]) << i;
  }
  EXPECT_LE(example.call.ByteSizeLong(), before.ByteSizeLong() + ExpansionBytesMax(before));
}

TEST(ExpandCall, GrowsByNoMoreThanItSays) {
  v1::Call call;
  v1::Part& part = *call.mutable_pull()->add_parts();
  part.set_table(UINT32_MAX);
  part.set_more(v1::Part::FOR_SHARD);
  CallPayload payload;
  for (int i = 0; i < 1000; ++i) {
    part.add_shards(UINT32_MAX);
    part.add_row_counts(UINT32_MAX);
  }
  payload.parts.push_back({});
  const size_t most = call.ByteSizeLong() + ExpansionBytesMax(call);
  ExpandCall(&call, &payload.parts);
  EXPECT_EQ(call.pull().parts_size(), 1000);
  EXPECT_LE(call.ByteSizeLong(), most);
}

// What the codec makes of the example: the call, and its payload.
std::pair<v1::Call, std::string> Encoded(FrameCodec* codec, Example* example, FrameCodec::Encoding* encoding) {
  Outbox outbox(1 << 20);
  outbox.Add(codec->Encode(1, example->payload, &example->call, encoding));
  std::vector<uint64_t> tags;
  v1::ExchangeRequest message;
  Payload payload;
  EXPECT_TRUE(ParseMessage(outbox.Pack(&tags), &message, &payload).ok());
  std::string bytes(payload.size(), ' ');
  payload.bytes().CopyTo(reinterpret_cast<uint8_t*>(bytes.data()));
  return {message.calls(0), bytes};
}

TEST(FrameCodec, SendsPartsOfSeveralShardsOnceThePsSaysThatItTakesThem) {
  FrameCodec codec("ps 0", 0, nullptr);
  FrameCodec::Encoding encoding;
  Example example;
  const std::string whole = example.call.push_pull().SerializeAsString();
  const size_t bytes_max = FrameCodec::BytesMax(example.payload, &example.call);
  const auto [plain, plain_payload] = Encoded(&codec, &example, &encoding);
  EXPECT_EQ(plain.push_pull().push().parts_size(), 4);
  EXPECT_EQ(plain_payload, "dense...AAAAAAAABBBBBBBBaaaaaaaabbbbbbbbCCCCCCCCccccccccDDDDDDDDEEEEEEEE");
  EXPECT_LE(plain.ByteSizeLong() + plain_payload.size(), bytes_max);
  EXPECT_EQ(example.call.push_pull().SerializeAsString(), whole) << "the call may be sent again, to another ps";

  v1::Answer answer;
  codec.Learn(answer, encoding);
  EXPECT_EQ(Encoded(&codec, &example, &encoding).first.push_pull().push().parts_size(), 4);
  answer.set_takes_several_shards(true);
  codec.Learn(answer, encoding);
  const auto [brief, payload] = Encoded(&codec, &example, &encoding);
  EXPECT_EQ(brief.push_pull().SerializeAsString(), whole);
  EXPECT_EQ(payload, "dense...AAAAAAAABBBBBBBBCCCCCCCCaaaaaaaabbbbbbbbccccccccDDDDDDDDEEEEEEEE");
}

}  // namespace
}  // namespace lodestone::worker
