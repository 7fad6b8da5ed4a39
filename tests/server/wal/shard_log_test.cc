#include "server/wal/shard_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <latch>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/base/random.h"
#include "common/io/file.h"
#include "common/telemetry/histogram.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/wal/log_files.h"

namespace lodestone::server {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Le;

constexpr int64_t kNeverMs = 1'000'000'000;
constexpr int64_t kNeverNs = kNeverMs * 1'000'000;

std::unique_ptr<ShardLog> OpenLog(const std::string& dir, ShardLog::Options options = {}) {
  options.segments.dir = dir;
  if (options.segments.header.generation() == 0) options.segments.header = LogHeader();
  if (options.pace == nullptr) options.pace = std::make_shared<CommitPace>(CommitPace::Options{.slow_ns = kNeverNs});
  auto log = ShardLog::Open(std::move(options));
  EXPECT_TRUE(log.ok()) << log.status();
  return *std::move(log);
}

ShardLog::Options Synced() {
  ShardLog::Options options;
  options.segments.sync = true;
  return options;
}

std::string PayloadOf(uint64_t number) { return std::string(number % 50, static_cast<char>('a' + number % 26)); }

// Appends record `number` with its payload in two pieces.
void AppendNumber(ShardLog* log, uint64_t number, ShardLog::Done done = nullptr) {
  const auto payload = std::make_shared<const std::string>(PayloadOf(number));
  const auto* data = reinterpret_cast<const uint8_t*>(payload->data());
  const ByteView views[] = {ByteView(data, payload->size() / 2),
                            ByteView(data + payload->size() / 2, payload->size() - payload->size() / 2)};
  log->Append(NumberedRecord(number), views, payload, std::move(done));
}

// Waits for what was appended before.
absl::Status SyncAndWait(ShardLog* log) {
  absl::Status status;
  std::latch told(1);
  log->Sync([&](const absl::Status& outcome) {
    status = outcome;
    told.count_down();
  });
  told.wait();
  return status;
}

absl::Status AppendAndWait(ShardLog* log, uint64_t number) {
  absl::Status status;
  std::latch told(1);
  AppendNumber(log, number, [&](const absl::Status& outcome) {
    status = outcome;
    told.count_down();
  });
  told.wait();
  return status;
}

// Sizes of the files in a folder.
std::vector<size_t> FileSizes(const std::string& dir) {
  const auto names = ListFolder(dir);
  EXPECT_TRUE(names.ok());
  std::vector<size_t> sizes;
  for (const std::string& name : *names) sizes.push_back(FileContent(dir + "/" + name).size());
  return sizes;
}

size_t Sum(const std::vector<size_t>& sizes) { return std::accumulate(sizes.begin(), sizes.end(), size_t{0}); }

void AwaitHealth(const ShardLog& log) {
  while (!log.health().ok()) std::this_thread::yield();
}

// The log in `dir` holds the records 0 … count - 1 with their payloads, and is whole.
void ExpectRecords(const std::string& dir, uint64_t count) {
  const LogContent content = ReadLog(dir);
  EXPECT_TRUE(content.status.ok()) << content.status;
  EXPECT_EQ(content.numbers, Numbers(0, count));
  EXPECT_THAT(content.cuts, IsEmpty());
  for (size_t i = 0; i < content.payloads.size(); ++i) EXPECT_EQ(content.payloads[i], PayloadOf(content.numbers[i]));
}

TEST(ShardLog, AnAppendToAnIdleLogIsWrittenAndConfirmedWithinTheCall) {
  const std::string dir = LogFolder();
  const auto log = OpenLog(dir);
  for (uint64_t i = 0; i < 100; ++i) {
    std::thread::id told_on;
    AppendNumber(log.get(), i, [&](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      told_on = std::this_thread::get_id();
    });
    EXPECT_EQ(told_on, std::this_thread::get_id());
    ExpectRecords(dir, i + 1);
  }
  EXPECT_EQ(log->stats().records, 100u);
  EXPECT_EQ(log->stats().commits, 100u);
}

TEST(ShardLog, ASyncedLogWritesOnItsOwnThreadAndTellsInOrder) {
  const std::string dir = LogFolder();
  const auto log = OpenLog(dir, Synced());
  std::vector<uint64_t> told;
  for (uint64_t i = 0; i < 100; ++i) {
    AppendNumber(log.get(), i, [&told, i, caller = std::this_thread::get_id()](const absl::Status& status) {
      EXPECT_TRUE(status.ok());
      EXPECT_NE(std::this_thread::get_id(), caller);
      told.push_back(i);
    });
  }
  EXPECT_TRUE(SyncAndWait(log.get()).ok());
  EXPECT_EQ(told, Numbers(0, 100));
  ExpectRecords(dir, 100);
}

TEST(ShardLog, WhatComesDuringASyncSharesTheNextOne) {
  std::latch in_sync(1), go_on(1);
  std::atomic<int> syncs = 0;
  ShardLog::Options options = Synced();
  options.segments.calls.fdatasync = [&](int fd) {
    // The first one is the header's.
    if (++syncs == 2) {
      in_sync.count_down();
      go_on.wait();
    }
    return ::fdatasync(fd);
  };
  const std::string dir = LogFolder();
  const auto log = OpenLog(dir, options);
  AppendNumber(log.get(), 0);
  in_sync.wait();
  std::atomic<int> told = 0;
  for (uint64_t i = 1; i <= 1000; ++i) {
    AppendNumber(log.get(), i, [&](const absl::Status&) { ++told; });
  }
  EXPECT_EQ(told, 0) << "nobody is told before the disk has it";
  go_on.count_down();
  EXPECT_TRUE(SyncAndWait(log.get()).ok());
  EXPECT_EQ(told, 1000);
  EXPECT_EQ(syncs, 3);
  EXPECT_EQ(log->stats().commits, 2u);
  EXPECT_EQ(log->stats().records, 1001u);
  ExpectRecords(dir, 1001);
}

TEST(ShardLog, TooMuchThatWaitsIsBackPressureUntilItIsWritten) {
  std::latch in_sync(1), go_on(1);
  std::atomic<int> syncs = 0;
  ShardLog::Options options = Synced();
  options.queue_bytes_max = 1000;
  options.segments.calls.fdatasync = [&](int fd) {
    if (++syncs == 2) {
      in_sync.count_down();
      go_on.wait();
    }
    return ::fdatasync(fd);
  };
  const auto log = OpenLog(LogFolder(), options);
  AppendNumber(log.get(), 0);
  in_sync.wait();
  EXPECT_TRUE(log->health().ok());
  for (uint64_t i = 1; i < 40; ++i) AppendNumber(log.get(), i);
  EXPECT_EQ(log->health().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(log->health().message()), HasSubstr("bytes wait to be written"));
  go_on.count_down();
  EXPECT_TRUE(SyncAndWait(log.get()).ok());
  EXPECT_TRUE(log->health().ok());
}

// A disk that is full as long as `full` is set: takes `room` bytes more, then says ENOSPC.
struct SmallDisk {
  std::atomic<bool> full = false;
  std::atomic<size_t> room = 0;

  FileCalls Calls() {
    FileCalls calls = FileCalls::System();
    calls.writev = [this](int fd, const iovec* pieces, int count) -> ssize_t {
      if (!full) return ::writev(fd, pieces, count);
      if (room == 0) return errno = ENOSPC, -1;
      const iovec some = {pieces[0].iov_base, std::min<size_t>(pieces[0].iov_len, room)};
      room -= some.iov_len;
      return ::writev(fd, &some, 1);
    };
    return calls;
  }
};

// A disk whose writes can be made to hang.
struct HangingDisk {
  std::atomic<bool> hangs{false};
  std::latch hung{1};  // The first write that hangs does.
  std::latch goes_on{1};

  FileCalls Calls() {
    FileCalls calls = FileCalls::System();
    calls.writev = [this](int fd, const iovec* pieces, int count) {
      if (hangs.exchange(false)) {
        hung.count_down();
        goes_on.wait();
      }
      return ::writev(fd, pieces, count);
    };
    return calls;
  }
};

TEST(ShardLog, AfterASlowCommitAnAppendDoesNotWaitForTheDisk) {
  const std::string dir = LogFolder();
  HangingDisk disk;
  ShardLog::Options options;
  options.segments.calls = disk.Calls();
  options.pace =
      std::make_shared<CommitPace>(CommitPace::Options{.slow_ns = -1, .calm_ns = kNeverNs});  // Each is slow.
  const auto log = OpenLog(dir, options);
  EXPECT_TRUE(AppendAndWait(log.get(), 0).ok());
  disk.hangs = true;
  std::latch told(1);
  std::thread::id told_on;
  AppendNumber(log.get(), 1, [&](const absl::Status& status) {
    EXPECT_TRUE(status.ok()) << status;
    told_on = std::this_thread::get_id();
    told.count_down();
  });
  disk.hung.wait();
  EXPECT_FALSE(told.try_wait());
  AppendNumber(log.get(), 2);
  disk.goes_on.count_down();
  told.wait();
  EXPECT_NE(told_on, std::this_thread::get_id());
  EXPECT_TRUE(SyncAndWait(log.get()).ok());
  ExpectRecords(dir, 3);
}

TEST(ShardLog, WhileTheWriteOfOneLogHangsNobodyWaitsForAnother) {
  const std::string dir = LogFolder(), other_dir = LogFolder();
  HangingDisk disk, other_disk;
  ShardLog::Options options;
  options.pace = std::make_shared<CommitPace>(CommitPace::Options{.slow_ns = 1000, .calm_ns = kNeverNs});
  options.segments.header = LogHeader();
  options.segments.calls = disk.Calls();
  const auto log = OpenLog(dir, options);
  options.segments.header.set_log(1);
  options.segments.calls = other_disk.Calls();
  const auto other = OpenLog(other_dir, options);
  disk.hangs = other_disk.hangs = true;
  std::thread appender([&] { AppendNumber(log.get(), 0); });
  disk.hung.wait();
  while (!options.pace->IsSlow(NowNs())) std::this_thread::yield();
  AppendNumber(other.get(), 0);
  other_disk.hung.wait();
  disk.goes_on.count_down();
  other_disk.goes_on.count_down();
  appender.join();
  EXPECT_TRUE(SyncAndWait(log.get()).ok());
  EXPECT_TRUE(SyncAndWait(other.get()).ok());
}

class ShardLogFailure : public testing::TestWithParam<bool> {
 protected:
  ShardLog::Options Options(FileCalls calls, int64_t retry_ms = 1) const {
    ShardLog::Options options;
    options.segments.sync = GetParam();
    options.segments.calls = std::move(calls);
    options.retry_ms = retry_ms;
    return options;
  }
};

TEST_P(ShardLogFailure, AFullDiskRefusesUntilThereIsSpaceAndKeepsWhatWasAppended) {
  for (const size_t room : {0, 1, 40, 100, 300}) {
    SmallDisk disk;
    const std::string dir = LogFolder();
    const auto log = OpenLog(dir, Options(disk.Calls()));
    EXPECT_TRUE(AppendAndWait(log.get(), 0).ok());
    disk.room = room;
    disk.full = true;
    uint64_t appended = 1;
    absl::Status refused;
    while ((refused = AppendAndWait(log.get(), appended++)).ok()) {
    }
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(dir + "/000001-000-000000.log: writev: No space left"));
    EXPECT_EQ(log->health(), refused);
    // A later append is answered at once, and its record is not lost either.
    for (int i = 0; i < 3; ++i) EXPECT_EQ(AppendAndWait(log.get(), appended++).code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(SyncAndWait(log.get()).code(), absl::StatusCode::kUnavailable);
    disk.full = false;
    AwaitHealth(*log);
    EXPECT_TRUE(SyncAndWait(log.get()).ok());
    EXPECT_TRUE(AppendAndWait(log.get(), appended++).ok());
    EXPECT_EQ(log->stats().records, appended);
    ExpectRecords(dir, appended);
    EXPECT_EQ(ListFolder(dir)->size(), 1u) << "what was torn was cut off";
  }
}

TEST_P(ShardLogFailure, WhatCannotBeCutOffIsNotCountedByTheNextSegment) {
  SmallDisk disk;
  const std::string dir = LogFolder();
  FileCalls calls = disk.Calls();
  calls.ftruncate = [](int, off_t) { return errno = EIO, -1; };
  const auto log = OpenLog(dir, Options(calls));
  EXPECT_TRUE(AppendAndWait(log.get(), 0).ok());
  disk.room = 30;
  disk.full = true;
  EXPECT_FALSE(AppendAndWait(log.get(), 1).ok());
  EXPECT_FALSE(AppendAndWait(log.get(), 2).ok());
  disk.full = false;
  AwaitHealth(*log);
  EXPECT_TRUE(AppendAndWait(log.get(), 3).ok());
  ExpectRecords(dir, 4);
  EXPECT_EQ(ListFolder(dir)->size(), 2u);
}

TEST_P(ShardLogFailure, ASegmentThatCannotBeBegunIsTriedAgain) {
  // At first it cannot be created, then there is no space for its header, then for a part of it only.
  SmallDisk disk;
  std::atomic<int> opens = 0;
  FileCalls calls = disk.Calls();
  calls.open = [&](const char* path, int flags, mode_t mode) {
    switch (++opens) {
      case 2:
        return errno = EMFILE, -1;
      case 3:
        disk.full = true;
        break;
      case 4:
        disk.room = 10;
        break;
      case 5:
        disk.full = false;
        break;
    }
    return ::open(path, flags, mode);
  };
  const std::string dir = LogFolder();
  const auto log = OpenLog(dir, Options(calls));
  EXPECT_TRUE(AppendAndWait(log.get(), 0).ok());
  log->Roll();
  AppendNumber(log.get(), 1);
  while (opens < 5) std::this_thread::yield();
  AwaitHealth(*log);
  EXPECT_TRUE(AppendAndWait(log.get(), 2).ok());
  EXPECT_EQ(opens, 5);
  ExpectRecords(dir, 3);
  EXPECT_THAT(*ListFolder(dir), ElementsAre("000001-000-000000.log", "000001-000-000001.log"));
}

TEST_P(ShardLogFailure, ALogThatFailsAloneHealsAlone) {
  // Nobody appends, since the log is not well: its thread must see to it.
  FileCalls calls = FileCalls::System();
  std::atomic<bool> broken = false;
  calls.open = [&](const char* path, int flags, mode_t mode) {
    return broken ? (errno = EIO, -1) : ::open(path, flags, mode);
  };
  const std::string dir = LogFolder();
  const auto log = OpenLog(dir, Options(calls));
  EXPECT_TRUE(AppendAndWait(log.get(), 0).ok());
  broken = true;
  log->Roll();
  while (log->health().ok()) std::this_thread::yield();
  EXPECT_THAT(std::string(log->health().message()), HasSubstr("000001-000-000001.log: open: Input/output error"));
  broken = false;
  AwaitHealth(*log);
  ExpectRecords(dir, 1);
}

TEST_P(ShardLogFailure, AnEndDuringAFailureWritesWhatCanBeWritten) {
  SmallDisk disk;
  const std::string dir = LogFolder();
  auto log = OpenLog(dir, Options(disk.Calls(), kNeverMs));
  disk.room = 20;
  disk.full = true;
  for (uint64_t i = 0; i < 5; ++i) EXPECT_FALSE(AppendAndWait(log.get(), i).ok());
  disk.full = false;
  log.reset();
  ExpectRecords(dir, 5);

  const std::string dir2 = LogFolder();
  log = OpenLog(dir2, Options(disk.Calls(), kNeverMs));
  EXPECT_TRUE(AppendAndWait(log.get(), 0).ok());
  disk.room = 0;
  disk.full = true;
  EXPECT_FALSE(AppendAndWait(log.get(), 1).ok());
  log.reset();
  ExpectRecords(dir2, 1);
}

TEST_P(ShardLogFailure, APayloadIsKeptAsLongAsItIsNotWrittenAndNoLonger) {
  SmallDisk disk;
  const std::string dir = LogFolder();
  const auto log = OpenLog(dir, Options(disk.Calls()));
  disk.full = true;
  auto payload = std::make_shared<std::string>(PayloadOf(0) + "payload");
  const std::weak_ptr<std::string> watch = payload;
  const ByteView views[] = {ByteView(reinterpret_cast<const uint8_t*>(payload->data()), payload->size())};
  std::latch told(1);
  log->Append(NumberedRecord(0), views, std::move(payload), [&](const absl::Status&) { told.count_down(); });
  told.wait();
  EXPECT_FALSE(watch.expired());
  disk.full = false;
  AwaitHealth(*log);
  EXPECT_TRUE(watch.expired());
  EXPECT_THAT(ReadLog(dir).payloads, ElementsAre("payload"));
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutSync, ShardLogFailure, testing::Bool(),
                         [](const auto& info) { return info.param ? "Synced" : "NotSynced"; });

TEST(ShardLog, AfterAFailedSyncAllSinceTheLastOneIsWrittenAgainElsewhere) {
  for (const bool truncates : {true, false}) {
    std::atomic<int> syncs = 0;
    off_t synced = 0;
    std::latch in_sync(1), go_on(1);
    ShardLog::Options options = Synced();
    options.retry_ms = 1;
    options.segments.calls.fdatasync = [&](int fd) {
      const int sync = ++syncs;
      if (sync == 3) {
        in_sync.count_down();
        go_on.wait();
      }
      if (sync != 4) {
        synced = lseek(fd, 0, SEEK_END);
        return ::fdatasync(fd);
      }
      // Linux tells once that writing failed, and forgets what was to be written: it may be anything.
      const auto lost = File::Open("/proc/self/fd/" + std::to_string(fd), O_WRONLY);
      const std::string anything(lseek(fd, 0, SEEK_END) - synced, '?');
      EXPECT_EQ(pwrite(lost->fd(), anything.data(), anything.size(), synced), static_cast<ssize_t>(anything.size()));
      return errno = EIO, -1;
    };
    if (!truncates) options.segments.calls.ftruncate = [](int, off_t) { return errno = EIO, -1; };
    const std::string dir = LogFolder();
    const auto log = OpenLog(dir, options);
    EXPECT_TRUE(AppendAndWait(log.get(), 0).ok());
    AppendNumber(log.get(), 1);
    in_sync.wait();
    std::atomic<int> refused = 0;
    for (uint64_t i = 2; i < 10; ++i) {
      AppendNumber(log.get(), i, [&](const absl::Status& status) {
        EXPECT_THAT(std::string(status.message()), HasSubstr("fdatasync: Input/output error"));
        refused += status.code() == absl::StatusCode::kUnavailable;
      });
    }
    go_on.count_down();
    while (refused < 8) std::this_thread::yield();
    AwaitHealth(*log);
    EXPECT_TRUE(AppendAndWait(log.get(), 10).ok());
    ExpectRecords(dir, 11);
    EXPECT_EQ(ListFolder(dir)->size(), 2u);
    const auto reader = LogReader::Open({.dir = dir, .expected = LogHeader()}, {{1, 0, 1}});
    v1::LogRecord record;
    ByteView payload;
    ASSERT_TRUE(*(*reader)->Next(&record, &payload));
    EXPECT_EQ(record.session_opened(), 2u) << "not what was synced, and all that was not";
  }
}

TEST(ShardLog, AFullSegmentIsFollowedByAnotherAndALongRecordHasOneForItself) {
  const std::string dir = LogFolder();
  ShardLog::Options options;
  options.segment_bytes_max = 1000;
  const auto log = OpenLog(dir, options);
  for (uint64_t i = 0; i < 100; ++i) AppendNumber(log.get(), i);
  ExpectRecords(dir, 100);
  const std::vector<size_t> sizes = FileSizes(dir);
  EXPECT_GT(sizes.size(), 5u);
  EXPECT_THAT(sizes, Each(Le(1000u)));
  EXPECT_EQ(log->stats().bytes, Sum(sizes));

  const std::string large(5000, 'x');
  const ByteView views[] = {ByteView(reinterpret_cast<const uint8_t*>(large.data()), large.size())};
  for (uint64_t i = 100; i < 102; ++i) log->Append(NumberedRecord(i), views, nullptr, nullptr);
  AppendNumber(log.get(), 102);
  const LogContent content = ReadLog(dir);
  EXPECT_EQ(content.numbers, Numbers(0, 103));
  EXPECT_EQ(content.payloads[101], large);
  EXPECT_EQ(FileSizes(dir).size(), sizes.size() + 3);
}

TEST(ShardLog, AGroupThatDoesNotFitIsDividedOverSegments) {
  std::latch in_sync(1), go_on(1);
  std::atomic<int> syncs = 0;
  ShardLog::Options options = Synced();
  options.segment_bytes_max = 1000;
  options.segments.calls.fdatasync = [&](int fd) {
    if (++syncs == 2) {
      in_sync.count_down();
      go_on.wait();
    }
    return ::fdatasync(fd);
  };
  const std::string dir = LogFolder();
  const auto log = OpenLog(dir, options);
  for (uint64_t i = 0; i < 100; ++i) AppendNumber(log.get(), i);
  in_sync.wait();
  go_on.count_down();
  EXPECT_TRUE(SyncAndWait(log.get()).ok());
  ExpectRecords(dir, 100);
  EXPECT_THAT(FileSizes(dir), Each(Le(1000u)));
}

TEST(ShardLog, DroppingRemovesTheSegmentsBeforeTheMarkAndNothingElse) {
  for (const bool sync : {false, true}) {
    const std::string dir = LogFolder();
    ShardLog::Options options;
    options.segments.sync = sync;
    options.segment_bytes_max = 500;
    const auto log = OpenLog(dir, options);
    for (uint64_t i = 0; i < 50; ++i) AppendNumber(log.get(), i);
    const uint64_t mark = log->Roll();
    for (uint64_t i = 50; i < 55; ++i) AppendNumber(log.get(), i);
    EXPECT_TRUE(SyncAndWait(log.get()).ok());
    EXPECT_EQ(ReadLog(dir).numbers, Numbers(0, 55));
    log->DropBefore(mark);
    EXPECT_EQ(ReadLog(dir).numbers, Numbers(50, 55));
    EXPECT_EQ(log->stats().bytes, Sum(FileSizes(dir)));
    log->DropBefore(mark);
    // Nothing has been appended since, and it goes nevertheless.
    const uint64_t last = log->Roll();
    EXPECT_TRUE(SyncAndWait(log.get()).ok());
    log->DropBefore(last);
    EXPECT_THAT(ReadLog(dir).numbers, IsEmpty());
    EXPECT_EQ(ListFolder(dir)->size(), 1u);
    EXPECT_EQ(log->Roll(), last) << "a fresh segment is not followed by another";
    EXPECT_TRUE(SyncAndWait(log.get()).ok());
    EXPECT_EQ(ListFolder(dir)->size(), 1u);
    AppendNumber(log.get(), 55);
    EXPECT_TRUE(SyncAndWait(log.get()).ok());
    EXPECT_THAT(ReadLog(dir).numbers, ElementsAre(55));
  }
}

TEST(ShardLog, ASegmentThatNothingWasCommittedToIsDroppedWithThoseBeforeIt) {
  // The first group's sync fails in segment 0 and again in segment 1, which holds nothing but its header then.
  std::atomic<int> syncs = 0;
  ShardLog::Options options = Synced();
  options.retry_ms = 0;
  options.segments.calls.fdatasync = [&](int fd) {
    const int sync = ++syncs;
    return sync == 2 || sync == 4 ? (errno = EIO, -1) : ::fdatasync(fd);
  };
  const std::string dir = LogFolder();
  const auto log = OpenLog(dir, options);
  EXPECT_FALSE(AppendAndWait(log.get(), 0).ok());
  AwaitHealth(*log);
  ExpectRecords(dir, 1);
  EXPECT_EQ(ListFolder(dir)->size(), 3u);
  EXPECT_EQ(log->stats().bytes, Sum(FileSizes(dir)));
  const uint64_t mark = log->Roll();
  EXPECT_TRUE(AppendAndWait(log.get(), 1).ok());
  log->DropBefore(mark);
  const LogContent content = ReadLog(dir);
  EXPECT_TRUE(content.status.ok()) << content.status;
  EXPECT_THAT(content.numbers, ElementsAre(1));
  EXPECT_THAT(*ListFolder(dir), ElementsAre("000001-000-000003.log"));
}

TEST(ShardLog, AMarkThatIsNotOnTheDiskYetDropsNothingThatIsNeeded) {
  SmallDisk disk;
  ShardLog::Options options;
  options.segments.calls = disk.Calls();
  options.retry_ms = kNeverMs;
  const std::string dir = LogFolder();
  auto log = OpenLog(dir, options);
  for (uint64_t i = 0; i < 3; ++i) AppendNumber(log.get(), i);
  disk.full = true;
  AppendNumber(log.get(), 3);
  const uint64_t mark = log->Roll();
  AppendNumber(log.get(), 4);
  log->DropBefore(mark);
  EXPECT_EQ(ReadLog(dir).numbers, Numbers(0, 3));
  disk.full = false;
  log.reset();
  ExpectRecords(dir, 5);
}

TEST(ShardLog, AGenerationIsBegunOnceAndLiesBesideThoseBefore) {
  const std::string dir = LogFolder();
  {
    const auto log = OpenLog(dir);
    for (uint64_t i = 0; i < 3; ++i) AppendNumber(log.get(), i);
  }
  ShardLog::Options again;
  again.segments.dir = dir;
  again.segments.header = LogHeader();
  const auto refused = ShardLog::Open(again);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("000001-000-000000.log"));
  ShardLog::Options next;
  next.segments.header = LogHeader(2, 5);
  {
    const auto log = OpenLog(dir, next);
    for (uint64_t i = 3; i < 5; ++i) AppendNumber(log.get(), i);
    const uint64_t mark = log->Roll();
    log->DropBefore(mark);
  }
  EXPECT_EQ(ReadLog(dir).numbers, Numbers(0, 3)) << "a log drops only its own";
  EXPECT_THAT(*ListLogs(dir), ElementsAre(ElementsAre(SegmentId{1, 0, 0}), ElementsAre(SegmentId{2, 5, 1})));
}

TEST(ShardLog, WritesWhatIsQueuedBeforeItIsDestroyed) {
  std::latch go_on(1);
  std::atomic<int> told = 0;
  ShardLog::Options options = Synced();
  std::atomic<int> syncs = 0;
  options.segments.calls.fdatasync = [&](int fd) {
    if (++syncs == 2) go_on.wait();
    return ::fdatasync(fd);
  };
  const std::string dir = LogFolder();
  {
    const auto log = OpenLog(dir, options);
    for (uint64_t i = 0; i < 50; ++i) {
      AppendNumber(log.get(), i, [&](const absl::Status& status) { told += status.ok(); });
    }
    go_on.count_down();
  }
  EXPECT_EQ(told, 50);
  ExpectRecords(dir, 50);
}

TEST(ShardLog, APayloadThatNobodyKeepsIsCopied) {
  std::latch in_sync(1), go_on(1);
  std::atomic<int> syncs = 0;
  ShardLog::Options options = Synced();
  options.segments.calls.fdatasync = [&](int fd) {
    if (++syncs == 2) {
      in_sync.count_down();
      go_on.wait();
    }
    return ::fdatasync(fd);
  };
  const std::string dir = LogFolder();
  const auto log = OpenLog(dir, options);
  AppendNumber(log.get(), 0);
  in_sync.wait();
  {
    const std::string payload = "gone soon, and longer than a string holds inside";
    const auto* data = reinterpret_cast<const uint8_t*>(payload.data());
    const ByteView views[] = {ByteView(data, 10), ByteView(data + 10, payload.size() - 10)};
    log->Append(NumberedRecord(1), views, nullptr, nullptr);
  }
  go_on.count_down();
  EXPECT_TRUE(SyncAndWait(log.get()).ok());
  EXPECT_EQ(ReadLog(dir).payloads[1], "gone soon, and longer than a string holds inside");
}

TEST(ShardLog, TheCallbackOfAnAppendMayAppend) {
  for (const bool sync : {false, true}) {
    ShardLog::Options options;
    options.segments.sync = sync;
    const std::string dir = LogFolder();
    const auto log = OpenLog(dir, options);
    std::latch all(1);
    std::function<void(uint64_t)> append = [&](uint64_t number) {
      AppendNumber(log.get(), number, [&, number](const absl::Status&) {
        if (number < 20) {
          append(number + 1);
        } else {
          all.count_down();
        }
      });
    };
    append(0);
    all.wait();
    ExpectRecords(dir, 21);
  }
}

TEST(ShardLog, ConcurrentAppendsAreEachWrittenOnceInTheirCallersOrder) {
  static constexpr uint64_t kThreads = 4;
  static constexpr uint64_t kRecords = 500;
  for (const bool sync : {false, true}) {
    ShardLog::Options options;
    options.segments.sync = sync;
    options.segment_bytes_max = 20'000;
    const std::string dir = LogFolder();
    const auto log = OpenLog(dir, options);
    absl::Notification start;
    std::vector<std::vector<uint64_t>> told(kThreads);
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        start.WaitForNotification();
        for (uint64_t i = 0; i < kRecords; ++i) {
          AppendNumber(log.get(), t * kRecords + i, [&told, t, i](const absl::Status& status) {
            if (status.ok()) told[t].push_back(t * kRecords + i);
          });
          if (i % 100 == 50) log->Roll();
        }
      });
    }
    start.Notify();
    for (std::thread& thread : threads) thread.join();
    EXPECT_TRUE(SyncAndWait(log.get()).ok());
    const LogContent content = ReadLog(dir);
    EXPECT_TRUE(content.status.ok()) << content.status;
    ASSERT_EQ(content.numbers.size(), kThreads * kRecords);
    std::vector<std::vector<uint64_t>> read(kThreads);
    for (size_t i = 0; i < content.numbers.size(); ++i) {
      read[content.numbers[i] / kRecords].push_back(content.numbers[i]);
      EXPECT_EQ(content.payloads[i], PayloadOf(content.numbers[i]));
    }
    for (uint64_t t = 0; t < kThreads; ++t) {
      EXPECT_EQ(read[t], Numbers(t * kRecords, (t + 1) * kRecords));
      EXPECT_EQ(told[t], read[t]);
    }
    EXPECT_EQ(log->stats().records, kThreads * kRecords);
  }
}

// Calls that fail at random, and look at each of them what a start after a kill -9 at that moment would find.
class BadDisk {
 public:
  BadDisk(std::string dir, uint64_t seed) : dir_(std::move(dir)), seed_(seed) {}

  FileCalls Calls() {
    FileCalls calls;
    calls.open = [this](const char* path, int flags, mode_t mode) {
      return Fails(10) ? (errno = EMFILE, -1) : ::open(path, flags, mode);
    };
    calls.writev = [this](int fd, const iovec* pieces, int count) -> ssize_t {
      if (Fails(10)) return errno = ENOSPC, -1;
      if (Draw() % 2 == 0) return ::writev(fd, pieces, count);
      const iovec some = {pieces[0].iov_base, 1 + Draw() % pieces[0].iov_len};
      return ::writev(fd, &some, 1);
    };
    calls.fdatasync = [this](int) { return Fails(10) ? (errno = EIO, -1) : 0; };
    calls.ftruncate = [this](int fd, off_t bytes) { return Fails(3) ? (errno = EIO, -1) : ::ftruncate(fd, bytes); };
    return calls;
  }

  // Records of which was told that they are durable: 0 … acknowledged - 1, but for those that were refused before.
  std::atomic<uint64_t> acknowledged = 0;
  std::atomic<bool> good = true;
  int crashes() const { return crashes_; }

 private:
  uint64_t Draw() { return RandomBits(seed_, drawn_++); }

  bool Fails(uint64_t one_in) {
    if (good) return false;
    Look();
    return Draw() % one_in == 0;
  }

  void Look() {
    ++crashes_;
    const uint64_t told = acknowledged;
    const LogContent content = ReadLog(dir_);
    ASSERT_TRUE(content.status.ok()) << content.status;
    EXPECT_EQ(content.numbers, Numbers(0, content.numbers.size()));
    EXPECT_GE(content.numbers.size(), told);
    for (const LogReader::Cut& cut : content.cuts) EXPECT_EQ(cut.kind, LogReader::Cut::Kind::kTorn);
  }

  const std::string dir_;
  const uint64_t seed_;
  uint64_t drawn_ = 0;  // The log's writer is one at a time.
  std::atomic<int> crashes_ = 0;
};

TEST(ShardLog, OnABadDiskEveryRecordIsThereOnceAtEveryMoment) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::string dir = LogFolder();
    BadDisk disk(dir, seed);
    ShardLog::Options options;
    options.segments.sync = seed % 2 == 0;
    options.segments.calls = disk.Calls();
    options.segment_bytes_max = 2000;
    options.retry_ms = 0;
    const auto log = OpenLog(dir, options);
    disk.good = false;
    constexpr uint64_t kRecords = 150;
    for (uint64_t i = 0; i < kRecords; ++i) {
      AppendNumber(log.get(), i, [&disk, i](const absl::Status& status) {
        if (status.ok()) disk.acknowledged = i + 1;
      });
      if (i % 40 == 39) log->Roll();
      if (i % 10 == 9) (void)SyncAndWait(log.get());
    }
    disk.good = true;
    AwaitHealth(*log);
    EXPECT_TRUE(SyncAndWait(log.get()).ok());
    ExpectRecords(dir, kRecords);
    EXPECT_GT(disk.crashes(), 50);
  }
}

}  // namespace
}  // namespace lodestone::server
