#include "server/wal/update_log.h"

#include <filesystem>
#include <latch>
#include <optional>

#include "common/base/limits.h"
#include "server/wal/shard_log.h"
#include "tests/server/wal/log_files.h"

namespace lodestone::server {
namespace {

constexpr uint64_t kLookBytes = 1 << 20;

v1::LogRecord UpdateOf(ShardId shard, Version version, uint64_t term, std::optional<uint64_t> before = std::nullopt) {
  v1::LogRecord record;
  record.set_shard(shard);
  record.set_version(version);
  record.set_term(term);
  if (before.has_value()) record.set_previous_term(*before);
  record.mutable_push()->set_worker(7);
  record.mutable_push()->set_sequence(version);
  return record;
}

class UpdateLogTest : public ::testing::Test {
 protected:
  ~UpdateLogTest() override { std::filesystem::remove_all(dir_); }

  // A log of a generation, with a segment for each list.
  void Write(uint64_t generation, uint32_t log, const std::vector<std::vector<v1::LogRecord>>& segments,
             uint64_t lineage = 1) {
    ShardLog::Options options;
    options.segments.dir = dir_;
    options.segments.header = LogHeader(generation, log);
    options.segments.header.set_lineage(lineage);
    auto opened = ShardLog::Open(std::move(options));
    ASSERT_TRUE(opened.ok()) << opened.status();
    for (const auto& segment : segments) {
      for (const v1::LogRecord& record : segment) (*opened)->Append(record, {}, nullptr, nullptr);
      (*opened)->Roll();
    }
  }
  static MissedUpdates::Copy CopyAt(const v1::LogRecord& record, uint64_t lineage = 1) {
    return {record.shard(), lineage, record.term(), {record.version(), MarkOf(record)}};
  }
  // The versions that a copy gets, in order; nullopt: the log does not lead from it to `upto`.
  std::optional<std::vector<Version>> Missed(const MissedUpdates::Copy& copy, Version upto,
                                             uint64_t look_bytes = kLookBytes) {
    const UpdateLog log(dir_, LogHeader(kGeneration), {});
    MissedUpdates missed(&log, look_bytes);
    const absl::Status found = missed.Find({copy}, {{copy.shard, upto}});
    EXPECT_TRUE(found.ok()) << found;
    if (!missed.Has(copy.shard)) return std::nullopt;
    std::vector<Version> versions;
    const absl::Status read = missed.Read({{copy.shard, upto}}, [&](const v1::LogRecord& record, const ByteView&) {
      EXPECT_EQ(record.shard(), copy.shard);
      versions.push_back(record.version());
      return absl::OkStatus();
    });
    EXPECT_TRUE(read.ok()) << read;
    if (!missed.Has(copy.shard)) return std::nullopt;
    EXPECT_EQ(missed.VersionOf(copy.shard), upto);
    return versions;
  }

  static constexpr uint64_t kGeneration = 3;
  const std::string dir_ = LogFolder();
};

using Versions = std::vector<Version>;

TEST_F(UpdateLogTest, ACopyGetsWhatItLacksOverSegmentsGenerationsAndTerms) {
  Write(2, 1, {{UpdateOf(1, 1, 1), UpdateOf(2, 1, 1), UpdateOf(1, 2, 1)}, {UpdateOf(1, 3, 1)}});
  Write(3, 0, {{UpdateOf(1, 4, 5, 1), UpdateOf(2, 2, 1)}, {UpdateOf(1, 5, 5)}});
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 1, 1)), 5), (Versions{2, 3, 4, 5}));
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 2, 1)), 4), (Versions{3, 4}));
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 4, 5, 1)), 5), (Versions{5}));
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 5, 5)), 5), (Versions{}));
  EXPECT_EQ(Missed(CopyAt(UpdateOf(2, 1, 1)), 2), (Versions{2}));
}

TEST_F(UpdateLogTest, ACopyThatTheLogDoesNotKnowGetsNothing) {
  Write(3, 0, {{UpdateOf(1, 4, 5, 1)}, {UpdateOf(1, 5, 5)}});
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 3, 1)), 5), std::nullopt) << "the log begins behind it";
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 4, 4)), 5), std::nullopt) << "it is of another owner";
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 5, 5)), 6), std::nullopt) << "the log ends before that";
  EXPECT_EQ(Missed({1, 1, 5, {4, 0}}, 5), std::nullopt) << "it does not know what it is";
}

TEST_F(UpdateLogTest, WhatAnOwnerLoggedInVainLeadsNowhere) {
  // It logged 4 and 5 of term 1, took a state at 3, and followed the owner of term 2.
  Write(3, 0,
        {{UpdateOf(1, 2, 1), UpdateOf(1, 3, 1), UpdateOf(1, 4, 1), UpdateOf(1, 5, 1)},
         {UpdateOf(1, 4, 2, 1), UpdateOf(1, 5, 2), UpdateOf(1, 6, 2)}});
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 5, 1)), 6), std::nullopt);
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 3, 1)), 6), std::nullopt) << "what lies between is not known to be nothing";
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 4, 2, 1)), 6), (Versions{5, 6}));
}

TEST_F(UpdateLogTest, NothingLeadsFromOneLineageToAnother) {
  Write(2, 0, {{UpdateOf(1, 1, 1)}, {UpdateOf(1, 2, 1)}});
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 1, 1), 2), 2), std::nullopt) << "nothing is of that lineage yet";
  Write(3, 0, {{UpdateOf(1, 3, 1), UpdateOf(1, 4, 1)}, {}}, /*lineage=*/2);
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 2, 1), 2), 4), std::nullopt) << "the ps went back in between";
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 3, 1), 2), 4), (Versions{4}));
}

TEST_F(UpdateLogTest, WhatWasMadeAgainIsNoPieceOfWhatItWasBefore) {
  v1::LogRecord again = UpdateOf(1, 2, 1);
  again.set_now_ms(99);
  Write(2, 0, {{UpdateOf(1, 1, 1), UpdateOf(1, 2, 1)}});
  Write(3, 0, {{again, UpdateOf(1, 3, 1)}, {}}, /*lineage=*/2);
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 1, 1), 2), 3), std::nullopt);
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 2, 1), 2), 3), std::nullopt);
  EXPECT_EQ(Missed(CopyAt(again, 2), 3), (Versions{3}));
}

TEST_F(UpdateLogTest, AShardHasItsOwnLineageInTheLogOfAPsOfAnother) {
  const auto moved = [](Version version) {
    v1::LogRecord record = UpdateOf(1, version, 1);
    record.set_lineage(3);
    return record;
  };
  Write(2, 0, {{moved(1)}, {UpdateOf(2, 1, 1), moved(2)}}, /*lineage=*/2);
  Write(3, 0, {{moved(3), UpdateOf(2, 2, 1)}, {}}, /*lineage=*/3);
  EXPECT_EQ(Missed(CopyAt(moved(1), 3), 3), (Versions{2, 3}));
  EXPECT_EQ(Missed(CopyAt(UpdateOf(2, 1, 1), 3), 2), std::nullopt) << "the ps went back with it in between";
}

TEST_F(UpdateLogTest, LineagesThatCameThroughAProgramThatDoesNotKnowThemDoNotCount) {
  v1::LogRecord strange = UpdateOf(1, 2, 1);
  strange.set_lineage(5);
  for (const bool known : {true, false}) {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
    ShardLog::Options options;
    options.segments.dir = dir_;
    options.segments.header = LogHeader(2);
    options.segments.header.set_record_lineages(known);
    auto opened = ShardLog::Open(std::move(options));
    ASSERT_TRUE(opened.ok()) << opened.status();
    for (const v1::LogRecord& record : {UpdateOf(1, 1, 1), strange}) (*opened)->Append(record, {}, nullptr, nullptr);
    (*opened)->Roll();
    opened->reset();
    EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 1, 1)), 2).has_value(), !known);
  }
}

TEST_F(UpdateLogTest, ALogIsLookedThroughAsFarAsItsCallerWants) {
  Write(3, 1, {{UpdateOf(2, 1, 1)}, {UpdateOf(2, 2, 1)}});
  EXPECT_EQ(Missed(CopyAt(UpdateOf(2, 1, 1)), 2), (Versions{2}));
  EXPECT_EQ(Missed(CopyAt(UpdateOf(2, 1, 1)), 2, /*look_bytes=*/1), std::nullopt);
}

TEST_F(UpdateLogTest, PiecesOfOneUpdateComeTogether) {
  const auto piece = [](uint64_t number, bool last) {
    v1::LogRecord record = UpdateOf(1, 2, 1);
    record.mutable_restored()->set_piece(number);
    record.mutable_restored()->set_last(last);
    return record;
  };
  Write(3, 0, {{UpdateOf(1, 1, 1), piece(0, false)}, {piece(1, false), piece(2, true), UpdateOf(1, 3, 1)}});
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 1, 1)), 2), (Versions{2, 2, 2}));
  EXPECT_EQ(Missed(CopyAt(UpdateOf(1, 1, 1)), 3), (Versions{2, 2, 2, 3}));
  EXPECT_EQ(Missed(CopyAt(piece(0, false)), 3), (Versions{3})) << "a copy at a version has all pieces of it";
}

TEST_F(UpdateLogTest, AHoldIsBoundedInBytes) {
  UpdateLog log(dir_, LogHeader(kGeneration), {});
  EXPECT_FALSE(log.Held(0));
  std::optional<UpdateLog::Hold> hold(&log);
  EXPECT_TRUE(log.Held(1000));
  EXPECT_FALSE(log.Held(1000 + limits::kCatchUpHoldBytes));
  hold.reset();
  EXPECT_FALSE(log.Held(1000));
}

}  // namespace
}  // namespace lodestone::server
