#include "worker/client/pull_values.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/base/random.h"
#include "common/wire/message.h"
#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

ShardMap OneServersMap(uint32_t shards) {
  v1::RouteResponse route;
  route.add_servers()->set_address("host:1");
  for (uint32_t shard = 0; shard < shards; ++shard) route.add_owners(0);
  return *ShardMap::FromProto(route);
}

TableHandle RowsTable(uint32_t dim) {
  TableHandle table;
  table.id = 7;
  table.spec.set_name("rows");
  table.spec.mutable_embedding()->set_dim(dim);
  table.dim = dim;
  return table;
}

// The answer to a message: each row has its key and its place, cut into slices of `slice_bytes`.
Payload AnswerTo(const ShardMessage& message, const std::vector<Key>& keys, size_t slice_bytes,
                 v1::PullResponse* response) {
  std::vector<float> values;
  for (const ShardMessage::Part& part : message.parts) {
    v1::Part* const out = response->add_parts();
    out->set_shard(part.shard);
    out->set_table(part.table->id);
    out->set_row_count(static_cast<uint32_t>(part.items.size()));
    response->add_shard_versions(3);
    for (const uint32_t item : part.items) {
      for (uint32_t i = 0; i < part.table->dim; ++i) values.push_back(static_cast<float>(keys[item] * 1000 + i));
    }
  }
  const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
  const size_t size = values.size() * sizeof(float);
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < size; at += slice_bytes) {
    slices.emplace_back(bytes + at, std::min(slice_bytes, size - at));
  }
  return Payload(std::move(slices));
}

TEST(PullValues, RowsGoWhereTheyBelongHoweverTheAnswerIsCut) {
  constexpr uint32_t kShards = 3;
  constexpr size_t kKeys = 50;
  const ShardMap map = OneServersMap(kShards);
  for (const uint32_t dim : {1u, 3u, 4u, 16u, 100u}) {
    const TableHandle table = RowsTable(dim);
    std::vector<Key> keys(kKeys);
    for (size_t i = 0; i < kKeys; ++i) keys[i] = RandomBits(5, i) % 1000;
    const size_t row_bytes = dim * sizeof(float);
    for (const size_t slice_bytes : {size_t{3}, row_bytes, row_bytes + 1, 7 * row_bytes + 2, kKeys * row_bytes}) {
      std::vector<float> values(kKeys * dim + 1, -1);
      PullValues pull({}, {{&table, keys, values.data()}}, kShards);
      const std::vector<ShardMessage> messages = *pull.Route({map, MessageLimits{1 << 20, 1 << 20}});
      ASSERT_EQ(messages.size(), 1u);
      v1::PullResponse response;
      const Payload answer = AnswerTo(messages[0], keys, slice_bytes, &response);
      ASSERT_TRUE(pull.Take(response, answer, messages[0]).ok());
      for (size_t i = 0; i < kKeys * dim; ++i) {
        ASSERT_EQ(values[i], static_cast<float>(keys[i / dim] * 1000 + i % dim))
            << "float " << i << ", rows of " << dim << ", slices of " << slice_bytes << " bytes";
      }
      EXPECT_EQ(values.back(), -1) << "nothing is written beyond the last row";
      EXPECT_TRUE(pull.complete());
    }
  }
}

TEST(PullValues, AnAnswerMayBeBriefAndIsRefusedWhereItDoesNotFit) {
  constexpr uint32_t kShards = 3;
  const ShardMap map = OneServersMap(kShards);
  const TableHandle table = RowsTable(2);
  std::vector<Key> keys(20);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  std::vector<float> values(keys.size() * 2, -1);
  PullValues pull({}, {{&table, keys, values.data()}}, kShards);
  const std::vector<ShardMessage> messages = *pull.Route({map, MessageLimits{1 << 20, 1 << 20}});
  v1::PullResponse response;
  const Payload answer = AnswerTo(messages[0], keys, 64, &response);
  response.clear_parts();

  v1::PullResponse wrong = response;
  wrong.add_shard_versions(3);
  EXPECT_EQ(pull.Take(wrong, answer, messages[0]).message(),
            "the answer has 0 parts and 4 shard versions, asked were 3 parts");
  wrong = response;
  wrong.add_steps(1);
  EXPECT_EQ(pull.Take(wrong, answer, messages[0]).message(), "the answer has the steps of 1 parts, and 3 parts");
  Payload longer = answer;
  longer.Take(4);
  EXPECT_EQ(pull.Take(response, longer, messages[0]).message(),
            "the answer's payload has 156 bytes, expected were 160");
  EXPECT_EQ(values, std::vector<float>(values.size(), -1)) << "nothing is copied";

  ASSERT_TRUE(pull.Take(response, answer, messages[0]).ok());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(values[i], static_cast<float>(keys[i / 2] * 1000 + i % 2));
  EXPECT_EQ(pull.versions(), ShardVersions(kShards, 3));
}

}  // namespace
}  // namespace lodestone::worker
