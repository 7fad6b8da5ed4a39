// The log of the shards of one executor: records are appended in order, made durable in groups, and confirmed when they
// are. A group is all that came while the one before was being written. With `sync` it is on the disk before any
// caller is told, and a thread of the log's own writes; without, the operating system has it (it survives the process),
// and the thread that appends to an idle log writes itself, so that no hand-off between threads is paid; while commits
// are slow (CommitPace), the log's own thread does.
//
// A log that cannot be written (no space left, a broken disk) refuses: health() says why, and callers that wait or come
// are told UNAVAILABLE. What was appended stays in memory, since it has been applied: it is tried again every retry_ms,
// and all is well again as soon as it is written.
//
// Thread-safe.
//
// Ownership: the destructor writes what waits, and waits until the disk has it. REQUIRES: nobody calls any more.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_view.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/simulation.h"
#include "common/base/time_source.h"
#include "common/io/record_file.h"
#include "proto/log.pb.h"
#include "server/wal/commit_pace.h"
#include "server/wal/segment_writer.h"

namespace lodestone::server {

class ShardLog {
 public:
  struct Options {
    SegmentWriter::Options segments;
    uint64_t segment_bytes_max = 256 << 20;  // A longer record has a segment of its own.
    uint64_t queue_bytes_max = limits::kLogQueueBytesMax;
    int64_t retry_ms = limits::kLogRetryMs;
    std::shared_ptr<CommitPace> pace;  // Of all logs of the folder; null: one of its own.
  };
  // Begins the log's first segment. ALREADY_EXISTS if there is one of this generation.
  static absl::StatusOr<std::unique_ptr<ShardLog>> Open(Options options);
  ~ShardLog();
  ShardLog(const ShardLog&) = delete;
  ShardLog& operator=(const ShardLog&) = delete;

  // Is told OK when a record, and all before it, are durable, or UNAVAILABLE, with file and reason, if they are not and
  // that is not known to change soon (but it may). Runs on the log's thread or on one that appends, perhaps
  // within the call that it was given to; in the order of those calls. Must be quick. May call the log. May be null.
  using Done = std::function<void(const absl::Status&)>;

  // Appends a record. Never waits for another thread's writing. `keep` is what the payload lies in; null: it is copied.
  void Append(const v1::LogRecord& record, std::span<const ByteView> payload, std::shared_ptr<const void> keep,
              Done done);
  struct Record {
    v1::LogRecord message;
    std::vector<ByteView> payload;
  };
  // Appends several, in order, as one: they are written together, and `done` is told of the last. Without any, as Sync.
  void Append(const std::vector<Record>& records, std::shared_ptr<const void> keep, Done done);
  // Waits for all that was appended before.
  void Sync(Done done);

  // Why nothing more should be appended now: UNAVAILABLE while the log cannot be written, RESOURCE_EXHAUSTED while too
  // much waits. Cheap.
  absl::Status health() const;

  // Begins a new segment behind what was appended, as soon as that is written, and returns a mark for DropBefore.
  uint64_t Roll();
  // Removes the segments that hold only what was appended before the mark was taken. Takes as long as the files take.
  void DropBefore(uint64_t mark);

  struct Stats {
    uint64_t records = 0;  // Durable.
    uint64_t commits = 0;  // Groups that they were in.
    uint64_t bytes = 0;    // Of its segments on disk.
    uint64_t written = 0;  // Bytes of those records.
  };
  Stats stats() const;
  // What those that append wait for.
  struct Wait {
    std::string what;  // "a write of DIR/…, under way", or why the log cannot be written; empty: for nothing.
    int64_t ms = 0;    // Since when.
  };
  // For what has lasted for `ms_min`.
  Wait wait(int64_t ms_min) const;

 private:
  struct Item {
    RecordBuilder record;  // Of 0 bytes: Sync or Roll.
    std::shared_ptr<const void> keep;
    Done done;
    bool begins_segment = false;
  };
  struct Segment {
    uint64_t number = 0;
    uint64_t bytes = 0;
    uint64_t end = 0;  // Records of the log up to its end.
  };

  explicit ShardLog(Options options);

  // Queues, and writes at once if that is for the caller to do. Returns the number of records appended before.
  uint64_t Enqueue(std::span<Item> items);
  uint64_t Enqueue(Item item) { return Enqueue({&item, 1}); }
  void WakeThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunThread();
  // Whether nothing is amiss; to be called after a change.
  void UpdateWell() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // For the thread that set busy_.
  std::deque<Item> TakeQueue();
  void Commit();
  absl::Status CommitGroup();
  // Begins the next segment, or writes pieces_, and tells the pace how long that took.
  absl::Status BeginSegment();
  absl::Status WritePieces(uint64_t bytes);
  void NoteCommit(uint64_t records, uint64_t bytes);
  void Fail(const absl::Status& status);
  void Refuse(std::deque<Item> items);
  // Waits until the disk has all segments, and marks that.
  absl::Status Seal();

  absl::Status SyncSegment(uint64_t number) const;
  std::string PathOf(uint64_t number) const;

  const Options options_;
  const SteadyTime time_;

  const std::shared_ptr<CommitPace> pace_;
  std::atomic<bool> well_{true};

  // Owned by the thread that set busy_.
  SegmentWriter writer_;
  std::deque<Item> writing_;   // Taken from queue_ and not written yet. Kept from one attempt to the next.
  std::vector<iovec> pieces_;  // Of the group that is being written.

  mutable Mutex mu_;
  CondVar wake_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // A thread writes, or calls those that wait.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mu_);        // Why the log cannot be written; OK: it can.
  int64_t retry_at_ms_ ABSL_GUARDED_BY(mu_) = 0;     // On SteadyTime's clock.
  int64_t failed_ms_ ABSL_GUARDED_BY(mu_) = 0;       // Since when it cannot be written.
  uint64_t appended_ ABSL_GUARDED_BY(mu_) = 0;       // Records.
  uint64_t waiting_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // Of records, in queue_ and writing_.
  uint64_t committed_ ABSL_GUARDED_BY(mu_) = 0;      // Records.
  uint64_t commits_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t written_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Segment> segments_ ABSL_GUARDED_BY(mu_);  // On disk; the last one is being written.
  Thread thread_ ABSL_GUARDED_BY(mu_);                 // Started when it is first needed.
};

}  // namespace lodestone::server
