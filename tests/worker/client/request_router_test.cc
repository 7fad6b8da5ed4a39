#include "worker/client/request_router.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/base/random.h"
#include "common/wire/message.h"
#include "common/wire/part.h"
#include "gtest/gtest.h"
#include "worker/client/push_payload.h"
#include "worker/rpc/call_payload.h"

namespace lodestone::worker {
namespace {

ShardMap MakeMap(uint32_t servers, uint32_t shards) {
  v1::RouteResponse route;
  for (uint32_t i = 0; i < servers; ++i) route.add_servers()->set_address("host:1");
  for (uint32_t owner : InitialOwners(shards, servers)) route.add_owners(owner);
  return *ShardMap::FromProto(route);
}

TableHandle Dense(const std::string& name, uint64_t elements, uint32_t block_elements) {
  TableHandle table;
  table.id = TableIdOf(name);
  table.spec.set_name(name);
  table.spec.mutable_dense()->add_dims(elements);
  table.layout = {elements, block_elements};
  return table;
}

TableHandle Rows(const std::string& name, uint32_t dim) {
  TableHandle table;
  table.id = TableIdOf(name);
  table.spec.set_name(name);
  table.spec.mutable_embedding()->set_dim(dim);
  table.dim = dim;
  return table;
}

std::vector<Key> RandomKeys(size_t count, uint64_t seed) {
  std::vector<Key> keys(count);
  for (size_t i = 0; i < count; ++i) keys[i] = RandomBits(seed, i) % 10'000;  // With duplicates.
  return keys;
}

struct Case {
  uint32_t servers;
  uint32_t shards;
  size_t bytes_target;
};

class RouterTest : public ::testing::TestWithParam<Case> {
 protected:
  const ShardMap map_ = MakeMap(GetParam().servers, GetParam().shards);
  const MessageLimits limits_{GetParam().bytes_target, 1 << 20};
  const TableHandle a_ = Dense("a", 10'007, 100), b_ = Dense("b", 64, 64), e_ = Rows("e", 5), f_ = Rows("f", 1);
  const std::vector<DensePull> dense_ = {{&a_}, {&b_}};
  const std::vector<Key> e_keys_ = RandomKeys(3'000, 1), f_keys_ = RandomKeys(17, 2);
  const std::vector<RowPull> rows_ = {{&e_, e_keys_}, {&f_, f_keys_}};
};

TEST_P(RouterTest, PutsEveryBlockAndKeyIntoExactlyOnePartOfItsShardAndServer) {
  const Routing routing = *RequestRouter(map_, limits_).RoutePull(dense_, rows_);
  std::map<std::pair<const TableHandle*, uint32_t>, int> seen;
  for (const ShardMessage& message : routing.messages) {
    for (const ShardMessage::Part& part : message.parts) {
      EXPECT_FALSE(part.items.empty());
      EXPECT_EQ(map_.OwnerOf(part.shard), message.server);
      for (uint32_t item : part.items) {
        ++seen[{part.table, item}];
        EXPECT_EQ(part.shard, part.dense ? ShardOfBlock(part.table->id, item, map_.shards())
                                         : ShardOfKey(rows_[part.source].keys[item], map_.shards()));
      }
    }
  }
  EXPECT_EQ(seen.size(), a_.layout.block_count() + b_.layout.block_count() + e_keys_.size() + f_keys_.size());
  for (const auto& [item, count] : seen) EXPECT_EQ(count, 1);
}

TEST_P(RouterTest, KeepsThePartsOfASourceAdjacentAndDescribesThoseOfRowsAsOne) {
  const Routing routing = *RequestRouter(map_, limits_).RoutePull(dense_, rows_);
  for (const ShardMessage& message : routing.messages) {
    std::set<const TableHandle*> tables;
    int dense_parts = 0;
    for (size_t i = 0; i < message.parts.size(); ++i) {
      const ShardMessage::Part& part = message.parts[i];
      dense_parts += part.dense ? 1 : 0;
      if (i == 0 || part.table != message.parts[i - 1].table) {
        EXPECT_TRUE(tables.insert(part.table).second);
      } else {
        EXPECT_GT(part.shard, message.parts[i - 1].shard);
      }
    }
    v1::PullRequest request;
    AddParts(message, request.mutable_parts());
    const auto row_tables =
        std::count_if(tables.begin(), tables.end(), [](const TableHandle* table) { return table->dim > 0; });
    EXPECT_EQ(request.parts_size(), dense_parts + row_tables);
  }
}

TEST_P(RouterTest, CutsMessagesBelowTheTargetUnlessOneItemIsLonger) {
  const Routing routing = *RequestRouter(map_, limits_).RoutePull(dense_, rows_);
  std::vector<float> a(a_.layout.elements), b(b_.layout.elements), e(e_keys_.size() * 5), f(f_keys_.size());
  const std::vector<DenseGradient> dense = {{&a_, a.data()}, {&b_, b.data()}};
  const std::vector<RowGradients> rows = {{&e_, e_keys_, e.data()}, {&f_, f_keys_, f.data()}};
  for (const ShardMessage& message : routing.messages) {
    v1::PushRequest request;
    request.set_worker_incarnation(~0ull);
    request.set_sequence(~0ull);
    request.set_clock(~0ull);
    size_t items = 0;
    AddParts(message, request.mutable_parts());
    for (const ShardMessage::Part& part : message.parts) items += part.items.size();
    const size_t bytes = BuildMessage(request, KeysInParts(MakePushPayload(message, dense, rows, nullptr))).Length();
    EXPECT_TRUE(items == 1 || bytes <= limits_.bytes_target) << bytes;
    EXPECT_LE(bytes, limits_.bytes_max);
  }
  const bool all_fits = limits_.bytes_target == 1 << 20;
  EXPECT_EQ(routing.messages.size() == map_.servers(), all_fits);
}

// What a range's step needs: a shard knows the step by one mark.
TEST_P(RouterTest, MayPutAllThatIsForAShardIntoOneMessage) {
  MessageLimits limits = limits_;
  limits.whole_shards = true;
  const absl::StatusOr<Routing> routing = RequestRouter(map_, limits).RoutePull(dense_, rows_);
  ASSERT_TRUE(routing.ok()) << routing.status();
  std::set<ShardId> seen;
  size_t items = 0;
  for (const ShardMessage& message : routing->messages) {
    std::set<ShardId> shards;
    for (const ShardMessage::Part& part : message.parts) {
      shards.insert(part.shard);
      items += part.items.size();
    }
    for (const ShardId shard : shards) EXPECT_TRUE(seen.insert(shard).second) << "shard " << shard;
    if (shards.size() > 1) {
      EXPECT_LE(message.ValueBytes(), GetParam().bytes_target);
    }
  }
  EXPECT_EQ(items, a_.layout.block_count() + b_.layout.block_count() + e_keys_.size() + f_keys_.size());
}

TEST(Router, RefusesAShardThatMustBeWholeAndFitsIntoNoMessage) {
  const ShardMap map = MakeMap(1, 1);
  const TableHandle table = Dense("large", 10'000, 100);
  MessageLimits limits{1 << 10, 20'000};
  limits.whole_shards = true;
  const std::vector<DensePull> dense = {{&table}};
  const absl::Status status = RequestRouter(map, limits).RoutePull(dense, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("raise cluster.shards or server.message_max_bytes"), status.message().npos) << status;
}

TEST_P(RouterTest, LaysThePayloadOutAsTheProtocolSays) {
  const Routing routing = *RequestRouter(map_, limits_).RoutePull(dense_, rows_);
  std::vector<float> a(a_.layout.elements), b(b_.layout.elements), e(e_keys_.size() * 5), f(f_keys_.size());
  float next = 0;
  for (auto* values : {&a, &b, &e, &f}) {
    for (float& value : *values) value = ++next;  // All different, all exact: fewer than 2^24.
  }
  // One table is borrowed, the other copied.
  const std::vector<DenseGradient> dense = {{&a_, a.data(), true}, {&b_, b.data()}};
  const std::vector<RowGradients> rows = {{&e_, e_keys_, e.data()}, {&f_, f_keys_, f.data()}};
  const auto release = std::make_shared<int>();
  for (const ShardMessage& message : routing.messages) {
    std::string payload;
    {
      const std::vector<grpc::Slice> slices = KeysInParts(MakePushPayload(message, dense, rows, release));
      size_t borrowed = 0;
      for (const grpc::Slice& slice : slices) {
        payload.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
        const auto* const floats = reinterpret_cast<const float*>(slice.begin());
        borrowed += floats >= a.data() && floats < a.data() + a.size() ? slice.size() / sizeof(float) : 0;
      }
      size_t of_a = 0;
      for (const ShardMessage::Part& part : message.parts) of_a += part.table == &a_ ? part.ValueCount() : 0;
      EXPECT_EQ(borrowed, of_a);
      EXPECT_EQ(release.use_count() > 1, of_a > 0);
    }
    EXPECT_EQ(release.use_count(), 1);
    size_t at = 0;
    const auto load = [&](auto* value) {
      std::memcpy(value, payload.data() + at, sizeof(*value));
      at += sizeof(*value);
      return *value;
    };
    const auto expect_floats = [&](const float* values, size_t count) {
      float value;
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(load(&value), values[i]);
    };
    v1::PushRequest request;
    AddParts(message, request.mutable_parts());
    size_t next_part = 0;
    for (const v1::Part& proto : request.parts()) {
      // Those that it describes.
      std::vector<ShardMessage::Part> parts;
      ForEachShard(proto, [&](ShardId shard, uint32_t row_count) {
        ASSERT_LT(next_part, message.parts.size());
        parts.push_back(message.parts[next_part++]);
        EXPECT_EQ(shard, parts.back().shard);
        EXPECT_EQ(proto.table(), parts.back().table->id);
        EXPECT_EQ(row_count, parts.back().dense ? 0 : parts.back().items.size());
      });
      for (BlockIndex block : proto.blocks()) {
        expect_floats(dense[parts[0].source].values + block * parts[0].table->layout.block_elements,
                      parts[0].table->layout.ElementsOf(block));
      }
      if (parts[0].dense) continue;
      for (const ShardMessage::Part& part : parts) {
        for (uint32_t row : part.items) {
          Key key;
          ASSERT_EQ(load(&key), rows[part.source].keys[row]);
        }
      }
      for (const ShardMessage::Part& part : parts) {
        for (uint32_t row : part.items) {
          expect_floats(rows[part.source].values + row * part.table->dim, part.table->dim);
        }
      }
    }
    EXPECT_EQ(next_part, message.parts.size());
    EXPECT_EQ(at, payload.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, RouterTest,
                         ::testing::Values(Case{1, 1, 1 << 20}, Case{2, 8, 1 << 20}, Case{3, 64, 1 << 20},
                                           Case{2, 8, 2'000}, Case{3, 7, 500}, Case{2, 4, 1}));

TEST(Router, RefusesABlockThatFitsIntoNoMessageAndNamesItsTable) {
  const TableHandle table = Dense("tower/weights", 100'000, 50'000);
  const DensePull tables[] = {{&table}};
  const ShardMap map = MakeMap(2, 4);
  const absl::Status status = RequestRouter(map, {1 << 20, 100'000}).RoutePull(tables, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("tower/weights"), std::string::npos) << status;
  EXPECT_NE(status.message().find("message_max_bytes"), std::string::npos) << status;
}

TEST(Router, RefusesTablesOfTheWrongShape) {
  const TableHandle dense = Dense("d", 10, 10), rows = Rows("r", 4);
  const DensePull as_dense[] = {{&rows}};
  const Key key = 1;
  const RowPull as_rows[] = {{&dense, {&key, 1}}};
  const ShardMap map = MakeMap(1, 1);
  const RequestRouter router(map, {});
  EXPECT_EQ(router.RoutePull(as_dense, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(router.RoutePull({}, as_rows).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(RouterTest, SaysOfEachPartOfAPushWhatLaterMessagesOfItHave) {
  const std::vector<float> values(e_keys_.size() * 5 + 20'000);
  const std::vector<DenseGradient> dense = {{&a_, values.data()}, {&b_, values.data()}};
  const std::vector<RowGradients> rows = {{&e_, e_keys_, values.data()}, {&f_, f_keys_, values.data()}};
  const auto routing = RequestRouter(map_, limits_).RoutePush(dense, rows);
  ASSERT_TRUE(routing.ok()) << routing.status();
  std::set<std::pair<TableId, uint32_t>> servers;  // Of which the last part was seen,
  std::set<std::pair<TableId, ShardId>> shards;    // and shards.
  for (size_t m = routing->messages.size(); m-- > 0;) {
    const ShardMessage& message = routing->messages[m];
    for (const ShardMessage::Part& part : message.parts) {
      const TableId table = part.table->id;
      const v1::Part::More expected = shards.contains({table, part.shard})        ? v1::Part::FOR_SHARD
                                      : servers.contains({table, message.server}) ? v1::Part::FOR_PS
                                                                                  : v1::Part::NOTHING;
      EXPECT_EQ(part.more, expected) << "message " << m << " shard " << part.shard;
    }
    for (const ShardMessage::Part& part : message.parts) {
      servers.emplace(part.table->id, message.server);
      shards.emplace(part.table->id, part.shard);
    }
    google::protobuf::RepeatedPtrField<v1::Part> parts;
    AddParts(message, &parts);
    size_t next_part = 0;
    for (const v1::Part& proto : parts) {
      for (size_t i = 0; i < ShardCount(proto); ++i) EXPECT_EQ(proto.more(), message.parts.at(next_part++).more);
    }
    EXPECT_EQ(next_part, message.parts.size());
  }
}

TEST(Router, GivesEveryShardThatHoldsSomethingOfATableAPartInOneMessageWhereThatIsWanted) {
  const TableHandle blocks = Dense("d", 100, 50), rows = Rows("r", 4);
  const Key key = 7;
  const std::vector<float> values(100, 1);
  const DenseGradient dense[] = {{&blocks, values.data()}};
  const RowGradients gradients[] = {{&rows, {&key, 1}, values.data()}};
  const ShardMap map = MakeMap(2, 8);
  const Routing routing = *RequestRouter(map, {.whole_shards = true, .every_shard = true}).RoutePush(dense, gradients);
  std::map<ShardId, size_t> message_of;
  size_t with_rows = 0, with_keys = 0, with_blocks = 0;
  for (size_t m = 0; m < routing.messages.size(); ++m) {
    for (const ShardMessage::Part& part : routing.messages[m].parts) {
      EXPECT_EQ(message_of.emplace(part.shard, m).first->second, m) << "shard " << part.shard;
      EXPECT_EQ(map.OwnerOf(part.shard), routing.messages[m].server);
      if (part.dense) {
        EXPECT_FALSE(part.items.empty()) << "of dense tables a shard holds its blocks, and only those";
        with_blocks += part.items.size();
      } else {
        ++with_rows;
        with_keys += part.items.size();
      }
    }
  }
  EXPECT_EQ(with_rows, 8u);
  EXPECT_EQ(with_keys, 1u);
  EXPECT_EQ(with_blocks, 2u);
  const RowPull none[] = {{&rows, {}}};
  size_t asked = 0;
  const Routing pull = *RequestRouter(map, {.every_shard = true}).RoutePull({}, none);
  for (const ShardMessage& message : pull.messages) asked += message.parts.size();
  EXPECT_EQ(asked, 8u);
}

// Regression: all messages to one server went out before the first one to the next.
TEST_P(RouterTest, ServersTakeTurnsAndTheMessagesToOneKeepTheirOrder) {
  const Routing routing = *RequestRouter(map_, limits_).RoutePull(dense_, rows_);
  std::vector<size_t> left(map_.servers());
  for (const ShardMessage& message : routing.messages) ++left[message.server];
  std::vector<size_t> sent(map_.servers());
  std::vector<std::optional<size_t>> last(map_.servers());
  const std::vector<size_t> order = ServersInTurn(routing.messages);
  ASSERT_EQ(order.size(), routing.messages.size());
  for (const size_t m : order) {
    const uint32_t server = routing.messages[m].server;
    EXPECT_TRUE(!last[server].has_value() || m > *last[server]);
    last[server] = m;
    ++sent[server];
    --left[server];
    for (uint32_t other = 0; other < map_.servers(); ++other) {
      if (left[other] == 0) continue;
      EXPECT_GE(sent[other] + 1, sent[server]) << "server " << other << " waits for server " << server;
    }
  }
  for (const size_t none : left) EXPECT_EQ(none, 0u);
}

TEST(Router, MakesNoMessageOfNothing) {
  const TableHandle rows = Rows("r", 4);
  const RowPull none[] = {{&rows, {}}};
  const ShardMap map = MakeMap(2, 8);
  EXPECT_TRUE(RequestRouter(map, {}).RoutePull({}, none)->messages.empty());
}

}  // namespace
}  // namespace lodestone::worker
