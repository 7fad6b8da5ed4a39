#include "worker/client/delta_reader.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

constexpr uint32_t kReadShards = 4;

class DeltaReaderTest : public ::testing::Test {
 protected:
  DeltaReaderTest() {
    dense_.id = TableIdOf("d");
    dense_.spec.set_name("d");
    dense_.spec.mutable_dense()->add_dims(10);
    dense_.layout = {10, 4};  // Blocks of 4, 4, 2.
    rows_.id = TableIdOf("r");
    rows_.spec.set_name("r");
    rows_.spec.mutable_embedding()->set_dim(3);
    rows_.dim = 3;
    tables_ = {{dense_.id, &dense_}, {rows_.id, &rows_}};
    listener_.on_block = [this](const BlockUpdate& update) {
      std::string line = absl::StrCat("block ", update.block, "@", update.version, ":");
      for (size_t i = 0; i < update.count; ++i) absl::StrAppend(&line, " ", update.values.Load<float>(i));
      heard_.push_back(line);
    };
    listener_.on_rows = [this](const RowsOfShard& update) {
      std::string line = "rows";
      for (size_t i = 0; i < update.evicted_count; ++i) absl::StrAppend(&line, " -", update.evicted.Load<Key>(i));
      for (size_t i = 0; i < update.count; ++i) {
        absl::StrAppend(&line, " ", update.keys.Load<Key>(i), ":", update.values.Load<float>(3 * i), "..",
                        update.values.Load<float>(3 * i + 2));
      }
      heard_.push_back(line);
    };
    listener_.on_anchor = [this](ShardId shard) { anchors_.push_back(shard); };
    listener_.on_shard = [this](ShardId shard, Version version) {
      heard_.push_back(absl::StrCat("shard ", shard, "@", version));
    };
  }

  ShardId ShardOf(BlockIndex block) const { return ShardOfBlock(dense_.id, block, kReadShards); }

  // A change of the shard of `block` that holds this block.
  v1::Delta Change(BlockIndex block, Version from, Version to, bool anchor = false, bool complete = true) const {
    v1::Delta delta;
    auto* shard = delta.add_shards();
    shard->set_shard(ShardOf(block));
    shard->set_from_version(from);
    shard->set_version(to);
    shard->set_anchor(anchor);
    shard->set_complete(complete);
    v1::Part* part = shard->add_parts();
    part->set_shard(shard->shard());
    part->set_table(dense_.id);
    part->add_blocks(block);
    part->add_block_versions(to);
    return delta;
  }

  static v1::Delta OfTerm(uint64_t term, v1::Delta delta) {
    delta.mutable_shards(0)->set_term(term);
    return delta;
  }

  absl::Status Read(const v1::Delta& delta, const std::vector<float>& values) {
    return ReadBy(&reader_, delta, values);
  }
  static absl::Status ReadBy(DeltaReader* reader, const v1::Delta& delta, const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    return reader->Read(delta, Payload({grpc::Slice(values.data(), bytes)}));
  }

  std::string Shard(BlockIndex block, Version version) const {
    return absl::StrCat("shard ", ShardOf(block), "@", version);
  }

  TableHandle dense_, rows_;
  std::map<TableId, const TableHandle*> tables_;
  std::vector<std::string> heard_;
  std::vector<ShardId> anchors_;
  SubscriptionListener listener_;
  ShardPositions positions_{kReadShards};
  DeltaReader reader_{&tables_, &positions_, &listener_};
};

TEST_F(DeltaReaderTest, TellsEachBlockAndThenTheShard) {
  ASSERT_TRUE(Read(Change(0, 0, 7, true), {1, 2, 3, 4}).ok());
  ASSERT_TRUE(Read(Change(0, 7, 9), {5, 6, 7, 8}).ok());
  ASSERT_TRUE(Read(Change(2, 0, 3, true), {9, 10}).ok());
  EXPECT_EQ(heard_, (std::vector<std::string>{"block 0@7: 1 2 3 4", Shard(0, 7), "block 0@9: 5 6 7 8", Shard(0, 9),
                                              "block 2@3: 9 10", Shard(2, 3)}));
}

TEST_F(DeltaReaderTest, TellsTheShardOnlyWhenAllPiecesAreThere) {
  ASSERT_TRUE(Read(Change(0, 0, 7, true, false), {1, 2, 3, 4}).ok());
  EXPECT_EQ(heard_.size(), 1);
  ASSERT_TRUE(Read(Change(0, 0, 7, true, true), {1, 2, 3, 4}).ok());
  EXPECT_EQ(heard_.back(), Shard(0, 7));
}

TEST_F(DeltaReaderTest, TellsOnceThatAnAnchorBegins) {
  ASSERT_TRUE(Read(Change(0, 0, 7, true, false), {1, 2, 3, 4}).ok());
  ASSERT_TRUE(Read(Change(0, 0, 7, true, false), {1, 2, 3, 4}).ok());
  ASSERT_TRUE(Read(Change(0, 0, 7, true, true), {1, 2, 3, 4}).ok());
  EXPECT_EQ(anchors_, std::vector<ShardId>{ShardOf(0)});
  ASSERT_TRUE(Read(Change(0, 7, 8), {1, 2, 3, 4}).ok());
  EXPECT_EQ(anchors_.size(), 1);
  ASSERT_TRUE(Read(Change(0, 0, 9, true), {1, 2, 3, 4}).ok());
  EXPECT_EQ(anchors_.size(), 2);
}

TEST_F(DeltaReaderTest, TellsRowsThatAreGoneAndThoseThatHaveChanged) {
  v1::Delta delta = Change(0, 0, 7, true);
  v1::Part* part = delta.mutable_shards(0)->mutable_parts(0);
  part->clear_blocks();
  part->clear_block_versions();
  part->set_table(rows_.id);
  part->set_evicted_count(1);
  part->set_row_count(2);
  const Key keys[] = {9, 5, 6};
  const float values[] = {1, 2, 3, 4, 5, 6};
  std::string bytes(reinterpret_cast<const char*>(keys), sizeof(keys));
  bytes.append(reinterpret_cast<const char*>(values), sizeof(values));
  ASSERT_TRUE(reader_.Read(delta, Payload({grpc::Slice(bytes)})).ok());
  EXPECT_EQ(heard_, (std::vector<std::string>{"rows -9 5:1..3 6:4..6", Shard(0, 7)}));
  bytes.pop_back();
  delta.mutable_shards(0)->set_version(8);
  const absl::Status status = reader_.Read(delta, Payload({grpc::Slice(bytes)}));
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  part->add_blocks(0);
  EXPECT_EQ(reader_.Read(delta, Payload()).code(), absl::StatusCode::kInternal) << "blocks of an embedding table";
}

TEST_F(DeltaReaderTest, SkipsRowsThatNobodyListensFor) {
  listener_.on_rows = nullptr;
  v1::Delta delta = Change(0, 0, 7, true);
  v1::Part* part = delta.mutable_shards(0)->add_parts();
  part->set_shard(ShardOf(0));
  part->set_table(rows_.id);
  part->set_evicted_count(1);
  part->set_row_count(2);
  // 1 evicted key, 2 keys, 2 rows of 3 floats: 24 + 24 bytes.
  ASSERT_TRUE(Read(delta, std::vector<float>(4 + 12)).ok());
  EXPECT_EQ(heard_.size(), 2);
}

TEST_F(DeltaReaderTest, RefusesAGap) {
  EXPECT_EQ(Read(Change(0, 3, 7), {1, 2, 3, 4}).code(), absl::StatusCode::kInternal) << "no anchor before";
  ASSERT_TRUE(Read(Change(1, 0, 7, true), {1, 2, 3, 4}).ok());
  const absl::Status status = Read(Change(1, 8, 9), {1, 2, 3, 4});
  EXPECT_NE(status.message().find("gap"), std::string::npos) << status;
}

TEST_F(DeltaReaderTest, RefusesAChangeThatBeginsBeforeTheLastIsComplete) {
  ASSERT_TRUE(Read(Change(0, 0, 7, true, false), {1, 2, 3, 4}).ok());
  EXPECT_EQ(Read(Change(0, 0, 8, true), {1, 2, 3, 4}).code(), absl::StatusCode::kInternal);
}

TEST_F(DeltaReaderTest, GoesOnFromWhatAnotherStreamBrought) {
  ASSERT_TRUE(Read(Change(0, 0, 7, true), {1, 2, 3, 4}).ok());
  DeltaReader next(&tables_, &positions_, &listener_);
  ASSERT_TRUE(ReadBy(&next, OfTerm(3, Change(0, 7, 9)), {5, 6, 7, 8}).ok());
  EXPECT_EQ(heard_.back(), Shard(0, 9));
  const auto held = positions_.Held();
  ASSERT_EQ(held.size(), 1);
  EXPECT_EQ(held[0].shard(), ShardOf(0));
  EXPECT_EQ(held[0].term(), 3);
  EXPECT_EQ(held[0].version(), 9);
}

TEST_F(DeltaReaderTest, DropsWhatAFormerOwnerSendsLate) {
  DeltaReader next(&tables_, &positions_, &listener_);
  ASSERT_TRUE(Read(Change(0, 0, 7, true), {1, 2, 3, 4}).ok());
  ASSERT_TRUE(Read(Change(0, 7, 8, false, false), {2, 2, 2, 2}).ok());  // Half of a change.
  ASSERT_TRUE(ReadBy(&next, OfTerm(3, Change(0, 0, 7, true, false)), {5, 6, 7, 8}).ok());
  const size_t heard = heard_.size();
  EXPECT_TRUE(Read(Change(0, 7, 8), {3, 3, 3, 3}).ok()) << "the other half";
  EXPECT_TRUE(Read(Change(0, 0, 20, true), {3, 3, 3, 3}).ok()) << "an anchor";
  EXPECT_EQ(heard_.size(), heard);
  ASSERT_TRUE(ReadBy(&next, OfTerm(3, Change(0, 0, 7, false)), {5, 6, 7, 8}).ok());
  EXPECT_EQ(heard_.back(), Shard(0, 7));
  EXPECT_TRUE(Read(Change(0, 8, 9), {3, 3, 3, 3}).ok());
  EXPECT_EQ(heard_.back(), Shard(0, 7));
  EXPECT_EQ(Read(Change(0, 9, 10), {3, 3, 3}).code(), absl::StatusCode::kInternal) << "dropped, and checked";
  EXPECT_EQ(positions_.Held()[0].term(), 3);
}

TEST_F(DeltaReaderTest, AnAnchorReplacesAllOfItsTermAndOlderOnes) {
  ASSERT_TRUE(Read(OfTerm(3, Change(0, 0, 7, true)), {1, 2, 3, 4}).ok());
  ASSERT_TRUE(Read(OfTerm(3, Change(0, 0, 5, true)), {1, 2, 3, 4}).ok());
  EXPECT_EQ(heard_.back(), Shard(0, 5));
  ASSERT_TRUE(Read(OfTerm(4, Change(0, 0, 2, true)), {1, 2, 3, 4}).ok());
  EXPECT_EQ(heard_.back(), Shard(0, 2));
}

TEST_F(DeltaReaderTest, HoldsNothingOfAShardAfterAFault) {
  ASSERT_TRUE(Read(Change(0, 0, 7, true), {1, 2, 3, 4}).ok());
  ASSERT_TRUE(Read(Change(1, 0, 7, true), {1, 2, 3, 4}).ok());
  ASSERT_FALSE(Read(Change(0, 8, 9), {1, 2, 3, 4}).ok());
  const auto held = positions_.Held();
  ASSERT_EQ(held.size(), 1);
  EXPECT_EQ(held[0].shard(), ShardOf(1));
}

// What the old owner began may have been lost with it; within a term a change contains what came of the one before.
TEST_F(DeltaReaderTest, GoesOnFromAnUnfinishedChangeWithinItsTermOnly) {
  ASSERT_TRUE(Read(Change(0, 0, 7, true), {1, 2, 3, 4}).ok());
  ASSERT_TRUE(Read(Change(0, 7, 9, false, false), {1, 2, 3, 4}).ok());
  DeltaReader second(&tables_, &positions_, &listener_);
  ASSERT_TRUE(ReadBy(&second, Change(0, 7, 10, false, false), {1, 2, 3, 4}).ok());
  DeltaReader third(&tables_, &positions_, &listener_);
  const absl::Status status = ReadBy(&third, OfTerm(3, Change(0, 7, 10)), {1, 2, 3, 4});
  EXPECT_NE(status.message().find("unfinished"), std::string::npos) << status;
  EXPECT_TRUE(positions_.Held().empty());
  ASSERT_TRUE(ReadBy(&third, OfTerm(3, Change(0, 0, 10, true)), {1, 2, 3, 4}).ok());
}

// Regression: a change from what was held before was taken for the rest of the anchor, and what neither had brought for
// gone.
TEST_F(DeltaReaderTest, AfterAnAnchorThatBrokeOffOnlyAnotherOneFollows) {
  ASSERT_TRUE(Read(Change(0, 0, 7, true), {1, 2, 3, 4}).ok());
  DeltaReader second(&tables_, &positions_, &listener_);
  ASSERT_TRUE(ReadBy(&second, Change(0, 0, 9, true, false), {1, 2, 3, 4}).ok());
  EXPECT_TRUE(positions_.Held().empty());
  DeltaReader third(&tables_, &positions_, &listener_);
  EXPECT_EQ(ReadBy(&third, Change(0, 7, 10), {1, 2, 3, 4}).code(), absl::StatusCode::kInternal);
  ASSERT_TRUE(ReadBy(&third, Change(0, 0, 10, true), {1, 2, 3, 4}).ok());
  EXPECT_EQ(heard_.back(), Shard(0, 10));
}

TEST_F(DeltaReaderTest, RefusesWhatContradictsItself) {
  const std::vector<float> values = {1, 2, 3, 4};
  const auto refused = [&](auto change, std::vector<float> payload) {
    v1::Delta delta = Change(0, 0, 7, true);
    change(&delta);
    heard_.clear();
    ShardPositions positions(kReadShards);
    DeltaReader reader(&tables_, &positions, &listener_);
    const size_t bytes = payload.size() * sizeof(float);
    return reader.Read(delta, Payload({grpc::Slice(payload.data(), bytes)})).code() == absl::StatusCode::kInternal;
  };
  const auto part = [](v1::Delta* delta) { return delta->mutable_shards(0)->mutable_parts(0); };
  EXPECT_FALSE(refused([](v1::Delta*) {}, values));
  EXPECT_TRUE(refused([](v1::Delta*) {}, {1, 2, 3}));
  EXPECT_TRUE(refused([](v1::Delta*) {}, {1, 2, 3, 4, 5}));
  EXPECT_TRUE(refused([](v1::Delta* d) { d->mutable_shards(0)->set_shard(kReadShards); }, values));
  EXPECT_TRUE(refused([&](v1::Delta* d) { part(d)->set_shard((ShardOf(0) + 1) % kReadShards); }, values));
  EXPECT_TRUE(refused([&](v1::Delta* d) { part(d)->set_table(dense_.id + 1); }, values));
  EXPECT_TRUE(refused([&](v1::Delta* d) { part(d)->set_blocks(0, 1); }, values)) << "of another shard";
  EXPECT_TRUE(refused([&](v1::Delta* d) { part(d)->set_blocks(0, 1'000'000); }, values));
  EXPECT_TRUE(refused([&](v1::Delta* d) { part(d)->clear_block_versions(); }, values));
  EXPECT_TRUE(refused([&](v1::Delta* d) { part(d)->set_row_count(1); }, values));
}

}  // namespace
}  // namespace lodestone::worker
