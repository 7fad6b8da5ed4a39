#include "server/wal/log_reader.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <latch>
#include <set>
#include <string>
#include <vector>

#include "common/io/record_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/wal/segment_name.h"
#include "server/wal/shard_log.h"
#include "tests/server/wal/log_files.h"

namespace lodestone::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string NumberedBytes(uint64_t number) {
  const std::string payload = "payload " + std::to_string(number);
  const ByteView views[] = {ByteView(reinterpret_cast<const uint8_t*>(payload.data()), payload.size())};
  return RecordBuilder(NumberedRecord(number), views).Copy();
}

// A segment with the records first … last - 1, as ShardLog writes it.
std::string SegmentBytes(v1::SegmentHeader header, uint64_t segment, uint64_t previous_bytes, uint64_t first,
                         uint64_t last) {
  header.set_format(kSegmentFormat);
  header.set_segment(segment);
  header.set_previous_bytes(previous_bytes);
  std::string bytes = RecordBuilder(header, {}).Copy();
  for (uint64_t number = first; number < last; ++number) bytes += NumberedBytes(number);
  return bytes;
}

// Log 0 of generation 1 in a folder: three segments with two records each, numbered from 0.
struct Log {
  Log() {
    uint64_t previous = 0;
    for (uint64_t segment = 0; segment < 3; ++segment) {
      paths.push_back(SegmentPath(dir, {1, 0, segment}));
      bytes.push_back(SegmentBytes(LogHeader(), segment, previous, segment * 2, segment * 2 + 2));
      previous = bytes.back().size();
      WriteContent(paths.back(), bytes.back());
    }
  }
  // Where record i of a segment begins: 0 is the header.
  size_t Begin(size_t segment, size_t i) const {
    if (i == 0) return 0;
    return bytes[segment].size() - (3 - i) * NumberedBytes(0).size();
  }

  const std::string dir = LogFolder();
  std::vector<std::string> paths, bytes;
};

TEST(LogReader, SegmentsAreNamedByTheirNumbersAndNothingElseIs) {
  EXPECT_EQ(SegmentName({3, 1, 17}), "000003-001-000017.log");
  for (const SegmentId& id : {SegmentId{3, 1, 17}, SegmentId{0, 0, 0}, SegmentId{12345678, 1023, UINT64_MAX}}) {
    EXPECT_EQ(ParseSegmentName(SegmentName(id)), id);
  }
  for (const char* name :
       {"", ".log", "3-1-17.log", "000003-001-000017.log.tmp", "000003-001.log", "-00003-001-000017.log",
        "000003-001-000017-1.log", "0000003-001-000017.log", "000003-001-0x0017.log", "lock", "000003-001- 00017.log",
        "999999999999999999999-001-000017.log"}) {
    EXPECT_EQ(ParseSegmentName(name), std::nullopt) << name;
  }
}

TEST(LogReader, ListsLogsByGenerationAndNumber) {
  const std::string dir = LogFolder();
  const std::vector<SegmentId> ids = {{1, 0, 7}, {1, 0, 8}, {1, 2, 0}, {2, 0, 0}, {10, 0, 999999}, {10, 0, 1000000}};
  for (size_t i = ids.size(); i-- > 0;) WriteContent(SegmentPath(dir, ids[i]), "");
  WriteContent(dir + "/notes.txt", "");
  const auto logs = ListLogs(dir);
  ASSERT_TRUE(logs.ok());
  EXPECT_THAT(*logs, ElementsAre(ElementsAre(ids[0], ids[1]), ElementsAre(ids[2]), ElementsAre(ids[3]),
                                 ElementsAre(ids[4], ids[5])));
  EXPECT_EQ(ListLogs(dir + "/none").status().code(), absl::StatusCode::kNotFound);
}

TEST(LogReader, ReadsRecordsAndPayloadsOverAllSegments) {
  const Log log;
  const LogContent content = ReadLog(log.dir);
  EXPECT_TRUE(content.status.ok()) << content.status;
  EXPECT_EQ(content.numbers, Numbers(0, 6));
  EXPECT_EQ(content.payloads[5], "payload 5");
  EXPECT_THAT(content.cuts, IsEmpty());
}

TEST(LogReader, ShowsTheHeaderBeforeTheRecordsAndWhereTheyLie) {
  const Log log;
  auto reader = LogReader::Open({.dir = log.dir, .expected = LogHeader()}, {{1, 0, 0}, {1, 0, 1}, {1, 0, 2}});
  ASSERT_TRUE(reader.ok());
  ASSERT_NE((*reader)->header(), nullptr);
  EXPECT_EQ((*reader)->header()->lineage(), 1u);
  v1::LogRecord record;
  ByteView payload;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(*(*reader)->Next(&record, &payload));
  EXPECT_EQ((*reader)->place(), log.paths[1] + ": the record at offset " + std::to_string(log.Begin(1, 2)));
}

TEST(LogReader, ALogWhoseFirstSegmentsWereDroppedIsRead) {
  const Log log;
  std::remove(log.paths[0].c_str());
  EXPECT_EQ(ReadLog(log.dir).numbers, Numbers(2, 6));
}

TEST(LogReader, ATornEndAtAnyByteIsLeftOutAndTold) {
  const Log log;
  for (size_t length = 0; length <= log.bytes[2].size(); ++length) {
    WriteContent(log.paths[2], log.bytes[2].substr(0, length));
    const LogContent content = ReadLog(log.dir);
    EXPECT_TRUE(content.status.ok()) << content.status;
    size_t whole = 0;  // Records of the segment, with its header.
    while (whole < 3 && length >= (whole == 2 ? log.bytes[2].size() : log.Begin(2, whole + 1))) ++whole;
    EXPECT_EQ(content.numbers, Numbers(0, 4 + (whole == 0 ? 0 : whole - 1))) << length;
    const size_t end = whole == 3 ? log.bytes[2].size() : log.Begin(2, whole);
    if (length == end && whole > 0) {
      EXPECT_THAT(content.cuts, IsEmpty()) << length;
      continue;
    }
    ASSERT_EQ(content.cuts.size(), 1u) << length;
    EXPECT_EQ(content.cuts[0].file, log.paths[2]);
    EXPECT_EQ(content.cuts[0].offset, end);
    EXPECT_EQ(content.cuts[0].bytes, length - end);
    EXPECT_EQ(content.cuts[0].kind, LogReader::Cut::Kind::kTorn);
    EXPECT_THAT(content.cuts[0].reason, HasSubstr(log.paths[2]));
  }
}

TEST(LogReader, AFlippedBitAnywhereIsAnErrorThatNamesFileAndOffsetAndWhatIsAtStake) {
  const Log log;
  for (size_t segment = 0; segment < 3; ++segment) {
    for (size_t byte = 0; byte < log.bytes[segment].size(); ++byte) {
      std::string damaged = log.bytes[segment];
      damaged[byte] ^= static_cast<char>(1 << byte % 8);
      WriteContent(log.paths[segment], damaged);
      const size_t record = byte < log.Begin(segment, 1) ? 0 : byte < log.Begin(segment, 2) ? 1 : 2;
      const size_t begin = log.Begin(segment, record);
      const size_t before = segment * 2 + (record == 2);
      const LogContent content = ReadLog(log.dir);
      EXPECT_EQ(content.status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(content.status.message()),
                  HasSubstr(log.paths[segment] + ": the record at offset " + std::to_string(begin) + " is damaged"));
      EXPECT_THAT(std::string(content.status.message()), HasSubstr("what follows there was acknowledged"));
      // A header is read before the records are.
      EXPECT_EQ(content.numbers, Numbers(0, record == 0 ? 0 : before));

      const LogContent cut = ReadLog(log.dir, /*cut_damaged=*/true);
      EXPECT_TRUE(cut.status.ok()) << cut.status;
      EXPECT_EQ(cut.numbers, Numbers(0, before));
      ASSERT_EQ(cut.cuts.size(), 1u);
      EXPECT_EQ(cut.cuts[0].kind, LogReader::Cut::Kind::kDamaged);
      EXPECT_EQ(cut.cuts[0].file, log.paths[segment]);
      EXPECT_EQ(cut.cuts[0].offset, begin);
      size_t left = log.bytes[segment].size() - begin;
      for (size_t after = segment + 1; after < 3; ++after) left += log.bytes[after].size();
      EXPECT_EQ(cut.cuts[0].bytes, left);
    }
    WriteContent(log.paths[segment], log.bytes[segment]);
  }
}

TEST(LogReader, ASegmentInTheMiddleThatIsShorterThanTheNextOneCountsIsDamage) {
  const Log log;
  for (size_t length = 0; length < log.bytes[1].size(); ++length) {
    WriteContent(log.paths[1], log.bytes[1].substr(0, length));
    const LogContent content = ReadLog(log.dir);
    EXPECT_EQ(content.status.code(), absl::StatusCode::kDataLoss) << length;
    EXPECT_THAT(std::string(content.status.message()), HasSubstr(log.paths[1]));
    const LogContent cut = ReadLog(log.dir, /*cut_damaged=*/true);
    EXPECT_TRUE(cut.status.ok());
    EXPECT_EQ(cut.numbers, Numbers(0, length < log.Begin(1, 2) ? 2 : 3)) << length;
    ASSERT_EQ(cut.cuts.size(), 1u);
    EXPECT_EQ(cut.cuts[0].kind, LogReader::Cut::Kind::kDamaged);
  }
}

TEST(LogReader, WhatTheNextSegmentDoesNotCountIsPassedOver) {
  // What may lie there after a failed write or fdatasync: a part of the next record, all of it, more than one, zeros.
  const Log log;
  const std::string rewritten = NumberedBytes(2) + NumberedBytes(3);
  for (const std::string& rest : {rewritten.substr(0, 10), NumberedBytes(2), rewritten, std::string(700, '\0')}) {
    WriteContent(log.paths[0], log.bytes[0] + rest);
    const LogContent content = ReadLog(log.dir);
    EXPECT_TRUE(content.status.ok()) << content.status;
    EXPECT_EQ(content.numbers, Numbers(0, 6));
    EXPECT_THAT(content.cuts, IsEmpty());
  }
}

TEST(LogReader, AFailureAndThenACrashWhileTheNextSegmentWasBegunLeaveTheLogReadable) {
  // Both ends are torn: that of the segment that could not be mended, and that of the header after it.
  const Log log;
  WriteContent(log.paths[1], log.bytes[1] + NumberedBytes(4).substr(0, 20));
  WriteContent(log.paths[2], log.bytes[2].substr(0, 20));
  const LogContent content = ReadLog(log.dir);
  EXPECT_TRUE(content.status.ok()) << content.status;
  EXPECT_EQ(content.numbers, Numbers(0, 4));
  ASSERT_EQ(content.cuts.size(), 2u);
  EXPECT_EQ(content.cuts[0].file, log.paths[2]);
  EXPECT_EQ(content.cuts[0].bytes, 20u);
  EXPECT_EQ(content.cuts[1].file, log.paths[1]);
  EXPECT_EQ(content.cuts[1].offset, log.bytes[1].size());
}

TEST(LogReader, AnEmptyOrTornSegmentAloneIsALogWithoutRecords) {
  const std::string dir = LogFolder();
  for (const size_t length : {0, 10, 40}) {
    WriteContent(SegmentPath(dir, {1, 0, 0}), SegmentBytes(LogHeader(), 0, 0, 0, 0).substr(0, length));
    auto reader = LogReader::Open({.dir = dir, .expected = LogHeader()}, {{1, 0, 0}});
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->header(), nullptr);
    v1::LogRecord record;
    ByteView payload;
    EXPECT_FALSE(*(*reader)->Next(&record, &payload));
    EXPECT_EQ((*reader)->cuts().size(), 1u);
  }
}

TEST(LogReader, AMissingSegmentIsAnErrorThatNamesIt) {
  const Log log;
  std::remove(log.paths[1].c_str());
  const LogContent content = ReadLog(log.dir);
  EXPECT_EQ(content.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(content.status.message()), HasSubstr(log.paths[1] + ": is missing"));
  const LogContent cut = ReadLog(log.dir, /*cut_damaged=*/true);
  EXPECT_TRUE(cut.status.ok());
  EXPECT_EQ(cut.numbers, Numbers(0, 2));
  ASSERT_EQ(cut.cuts.size(), 1u);
  EXPECT_EQ(cut.cuts[0].kind, LogReader::Cut::Kind::kDamaged);
  EXPECT_EQ(cut.cuts[0].bytes, log.bytes[2].size());
}

TEST(LogReader, ALogOfAnotherClusterOrServerIsRefusedAlsoWhenDamageMayBeCut) {
  const Log log;
  struct Case {
    void (*change)(v1::SegmentHeader*);
    const char* message;
  };
  for (const Case& test : {
           Case{[](v1::SegmentHeader* header) { header->set_cluster("other"); }, "cluster.name test, not other"},
           Case{[](v1::SegmentHeader* header) { header->set_shards(9); }, "cluster.shards 8, not 9"},
           Case{[](v1::SegmentHeader* header) { header->set_seed(6); }, "cluster.seed 5, not 6"},
           Case{[](v1::SegmentHeader* header) { header->set_server(2); }, "server.index 1, not 2"},
       }) {
    v1::SegmentHeader expected = LogHeader();
    test.change(&expected);
    const LogContent content = ReadLog(log.dir, /*cut_damaged=*/true, expected);
    EXPECT_EQ(content.status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(content.status.message()), HasSubstr(log.paths[0]));
    EXPECT_THAT(std::string(content.status.message()), HasSubstr(test.message));
  }
}

TEST(LogReader, ASegmentOfAnotherFormatLineageOrNameIsRefused) {
  const auto error = [](const v1::SegmentHeader& second) {
    const std::string dir = LogFolder();
    const std::string first = SegmentBytes(LogHeader(), 0, 0, 0, 2);
    WriteContent(SegmentPath(dir, {1, 0, 0}), first);
    v1::SegmentHeader header = second;
    header.set_previous_bytes(first.size());
    WriteContent(SegmentPath(dir, {1, 0, 1}), RecordBuilder(header, {}).Copy());
    return std::string(ReadLog(dir).status.message());
  };
  v1::SegmentHeader header = LogHeader();
  header.set_format(kSegmentFormat);
  header.set_segment(1);
  EXPECT_EQ(error(header), "");
  header.set_lineage(2);
  EXPECT_THAT(error(header), HasSubstr("000001-000-000001.log: was written with lineage 2, not 1"));
  header.set_lineage(1);
  header.set_format(2);
  EXPECT_THAT(error(header), HasSubstr("was written with format 2, not 1"));
  header.set_format(kSegmentFormat);
  header.set_segment(4);
  EXPECT_THAT(error(header), HasSubstr("000001-000-000001.log: was renamed, it is 000001-000-000004.log"));
}

// A log of a ps on a machine that has gone down since, as its writer left it: groups of one record each, and one of
// eight that the disk may not have had.
class LogOfAnEarlierBoot : public testing::TestWithParam<bool> {
 protected:
  static constexpr uint64_t kRecords = 14;

  LogOfAnEarlierBoot() {
    ShardLog::Options options;
    options.segments.dir = dir_;
    options.segments.header = LogHeader();
    options.segments.header.set_boot("earlier");
    options.segments.sync = GetParam();
    auto log = ShardLog::Open(options);
    EXPECT_TRUE(log.ok()) << log.status();
    for (uint64_t number = 0; number < kRecords - 8; ++number) {
      if (number == 3) (*log)->Roll();
      Append(log->get(), {number});
    }
    certain_ = FileContent(Path(1)).size();
    Append(log->get(), Numbers(kRecords - 8, kRecords));
    // What is there before the log is closed, which the machine's end prevents.
    killed_ = {FileContent(Path(0)), FileContent(Path(1))};
    log->reset();
    closed_ = {FileContent(Path(0)), FileContent(Path(1))};
    Restore(killed_);
  }

  std::string Path(uint64_t segment) const { return SegmentPath(dir_, {1, 0, segment}); }
  void Restore(const std::vector<std::string>& segments) {
    for (size_t i = 0; i < segments.size(); ++i) WriteContent(Path(i), segments[i]);
  }
  // Zeros, or something else, in place of some of a segment. False: that was there before.
  bool Spoil(const std::vector<std::string>& segments, uint64_t segment, size_t offset, size_t bytes, char with) {
    Restore(segments);
    std::string content = segments[segment];
    for (size_t i = offset; i < std::min(content.size(), offset + bytes); ++i) content[i] = with;
    WriteContent(Path(segment), content);
    return content != segments[segment];
  }
  LogContent Read(const std::string& boot, bool sealed = false) const {
    return ReadLog({.dir = dir_, .expected = LogHeader(), .boot = boot, .sealed = sealed});
  }

  static void Append(ShardLog* log, const std::vector<uint64_t>& numbers) {
    std::vector<ShardLog::Record> records;
    for (const uint64_t number : numbers) records.push_back({NumberedRecord(number), {}});
    std::latch told(1);
    log->Append(records, nullptr, [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok()) << status;
      told.count_down();
    });
    told.wait();
  }

  const std::string dir_ = LogFolder();
  std::vector<std::string> killed_, closed_;  // The segments' content.
  size_t certain_ = 0;                        // Bytes of segment 1 before the last group.
};
INSTANTIATE_TEST_SUITE_P(WithAndWithoutSync, LogOfAnEarlierBoot, testing::Bool(),
                         [](const auto& info) { return info.param ? "Synced" : "NotSynced"; });

TEST_P(LogOfAnEarlierBoot, IsReadWhole) {
  for (const auto* segments : {&killed_, &closed_}) {
    Restore(*segments);
    const LogContent content = Read("now");
    EXPECT_TRUE(content.status.ok()) << content.status;
    EXPECT_EQ(content.numbers, Numbers(0, kRecords));
    EXPECT_THAT(content.cuts, IsEmpty());
  }
}

TEST_P(LogOfAnEarlierBoot, AHoleInTheGroupThatWasBeingWrittenIsLeftOutWithWhatFollows) {
  for (size_t offset = certain_; offset < killed_[1].size(); offset += 8) {
    for (const char with : {'\0', 'x'}) {
      if (!Spoil(killed_, 1, offset, 8, with)) continue;
      const LogContent content = Read("now");
      EXPECT_TRUE(content.status.ok()) << content.status;
      EXPECT_GE(content.numbers.size(), kRecords - 8);
      EXPECT_LT(content.numbers.size(), kRecords);
      EXPECT_EQ(content.numbers, Numbers(0, content.numbers.size()));
      ASSERT_EQ(content.cuts.size(), 1u);
      EXPECT_NE(content.cuts[0].kind, LogReader::Cut::Kind::kDamaged);
      EXPECT_EQ(content.cuts[0].file, Path(1));
      EXPECT_LE(content.cuts[0].offset, offset);
      EXPECT_GE(content.cuts[0].offset, certain_);
    }
  }
}

TEST_P(LogOfAnEarlierBoot, DamageIsAnErrorWhereTheMachineHasNotGoneDown) {
  Spoil(killed_, 1, certain_ + 8, 8, 'x');
  EXPECT_EQ(Read("earlier").status.code(), absl::StatusCode::kDataLoss);
  Spoil(killed_, 0, 100, 8, '\0');
  EXPECT_EQ(Read("earlier").status.code(), absl::StatusCode::kDataLoss);
}

TEST_P(LogOfAnEarlierBoot, WhatAMarkSaysToBeOnTheDiskIsNeverLeftOut) {
  // Without sync there is a mark only once the log has been closed: everything is before it.
  const std::vector<std::string>& segments = GetParam() ? killed_ : closed_;
  for (size_t segment = 0; segment < 2; ++segment) {
    const size_t certain = segment == 0 || !GetParam() ? killed_[segment].size() : certain_;
    for (size_t offset = 0; offset + 8 <= certain; offset += 8) {
      Spoil(segments, segment, offset, 8, 'x');
      EXPECT_EQ(Read("now").status.code(), absl::StatusCode::kDataLoss) << segment << ": " << offset;
    }
  }
  Restore(segments);
  std::remove(Path(0).c_str());
  std::string shorter = segments[0];
  shorter.pop_back();
  for (const std::string& first : {std::string(), shorter}) {
    WriteContent(Path(0), first);
    EXPECT_EQ(Read("now").status.code(), absl::StatusCode::kDataLoss);
  }
}

TEST_P(LogOfAnEarlierBoot, WithoutSyncAnyPartOfItMayBeMissing) {
  if (GetParam()) GTEST_SKIP() << "about logs without sync";
  const auto expect = [&](uint64_t least) {
    const LogContent content = Read("now");
    EXPECT_TRUE(content.status.ok()) << content.status;
    EXPECT_EQ(content.numbers, Numbers(0, content.numbers.size()));
    EXPECT_GE(content.numbers.size(), least);
    ASSERT_FALSE(content.cuts.empty());
    EXPECT_NE(content.cuts[0].kind, LogReader::Cut::Kind::kDamaged);
  };
  const size_t header = killed_[0].size() / 4;
  for (size_t offset = header; offset < killed_[0].size(); offset += 8) {
    if (Spoil(killed_, 0, offset, 8, '\0')) expect(0);
    Restore(killed_);
    WriteContent(Path(0), killed_[0].substr(0, offset));
    expect(0);
  }
  Restore(killed_);
  WriteContent(Path(1), "");
  expect(3);
}

TEST_P(LogOfAnEarlierBoot, WhatWasSealedIsReadAgainAsItWasAndIsNeverLeftOutLater) {
  Spoil(killed_, 1, certain_ + 100, 8, 'x');
  auto reader = LogReader::Open({.dir = dir_, .expected = LogHeader(), .boot = "now"}, (*ListLogs(dir_))[0]);
  ASSERT_TRUE(reader.ok()) << reader.status();
  v1::LogRecord record;
  ByteView payload;
  while (*(*reader)->Next(&record, &payload)) {
  }
  ASSERT_EQ((*reader)->cuts().size(), 1u);
  const uint64_t end = (*reader)->cuts()[0].offset;
  std::set<ino_t> synced;
  FileCalls calls = FileCalls::System();
  calls.fdatasync = [&](int fd) {
    struct stat info;
    EXPECT_EQ(fstat(fd, &info), 0);
    synced.insert(info.st_ino);
    return ::fdatasync(fd);
  };
  ASSERT_TRUE((*reader)->Seal(&calls).ok());
  EXPECT_EQ(synced.size(), 2u);
  const std::string left = FileContent(Path(1));
  EXPECT_EQ(left.size(), end);
  const LogContent content = Read("now", /*sealed=*/true);
  EXPECT_TRUE(content.status.ok()) << content.status;
  EXPECT_THAT(content.cuts, IsEmpty());
  EXPECT_GE(content.numbers.size(), kRecords - 8);
  WriteContent(Path(1), left.substr(0, left.size() - 1));
  EXPECT_EQ(Read("later", /*sealed=*/true).status.code(), absl::StatusCode::kDataLoss);
  WriteContent(Path(1), left.substr(0, certain_));
  std::string flipped = left;
  flipped[certain_ - 1] ^= 1;
  WriteContent(Path(1), flipped);
  EXPECT_EQ(Read("later", /*sealed=*/true).status.code(), absl::StatusCode::kDataLoss);
}

TEST(LogReader, ATornSegmentAndWhatFollowsAreDeletedWhenItIsSealed) {
  const Log log;
  WriteContent(log.paths[1], log.bytes[1] + NumberedBytes(4).substr(0, 20));
  WriteContent(log.paths[2], log.bytes[2].substr(0, 20));
  auto reader = LogReader::Open({.dir = log.dir, .expected = LogHeader()}, (*ListLogs(log.dir))[0]);
  ASSERT_TRUE(reader.ok());
  v1::LogRecord record;
  ByteView payload;
  while (*(*reader)->Next(&record, &payload)) {
  }
  const FileCalls calls = FileCalls::System();
  ASSERT_TRUE((*reader)->Seal(&calls).ok());
  EXPECT_THAT(*ListFolder(log.dir), ElementsAre("000001-000-000000.log", "000001-000-000001.log"));
  EXPECT_EQ(FileContent(log.paths[1]), log.bytes[1]);
}

}  // namespace
}  // namespace lodestone::server
