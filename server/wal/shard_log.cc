#include "server/wal/shard_log.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/simulation.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "server/wal/segment_name.h"

namespace lodestone::server {
namespace {

HistogramMetric commit_metric("lodestone_ps_log_commit_duration_seconds",
                              "How long it takes to write a group of records, and with cluster.durability: machine to "
                              "have it on the disk.");

// What commits are timed by: NowNs, or in a simulation, its clock.
int64_t CommitClockNs() {
  const Simulation* const simulation = Simulation::Current();
  return simulation == nullptr ? NowNs() : simulation->NowMs() * 1'000'000;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShardLog>> ShardLog::Open(Options options) {
  auto log = std::unique_ptr<ShardLog>(new ShardLog(std::move(options)));
  LODESTONE_RETURN_IF_ERROR(log->writer_.Begin());
  log->NoteCommit(0, 0);
  return log;
}

ShardLog::ShardLog(Options options)
    : options_(std::move(options)),
      pace_(options_.pace != nullptr ? options_.pace : std::make_shared<CommitPace>()),
      writer_(options_.segments) {}

ShardLog::~ShardLog() {
  Thread thread;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_.NotifyAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
  Commit();
  if (!writing_.empty()) {
    LODESTONE_LOG(ERROR, "log", "records were never written dir={} records={}", options_.segments.dir, writing_.size());
  } else if (const absl::Status sealed = Seal(); !sealed.ok()) {
    LODESTONE_LOG(ERROR, "log", "the log may not be on the disk error={}", sealed.ToString());
  }
}

absl::Status ShardLog::Seal() {
  MutexLock lock(&mu_);
  for (const Segment& segment : segments_) {
    if (segment.number < writer_.number()) LODESTONE_RETURN_IF_ERROR(SyncSegment(segment.number));
  }
  return writer_.Seal();
}

absl::Status ShardLog::SyncSegment(uint64_t number) const {
  if (options_.segments.sync) return absl::OkStatus();  // Has been.
  LODESTONE_ASSIGN_OR_RETURN(File file, File::Open(PathOf(number), O_RDONLY, &options_.segments.calls));
  return file.Sync();
}

std::string ShardLog::PathOf(uint64_t number) const {
  const v1::SegmentHeader& header = options_.segments.header;
  return SegmentPath(options_.segments.dir, {header.generation(), header.log(), number});
}

void ShardLog::Append(const v1::LogRecord& record, std::span<const ByteView> payload, std::shared_ptr<const void> keep,
                      Done done) {
  size_t bytes = 0;
  for (const ByteView& view : payload) bytes += view.size();
  if (keep != nullptr || bytes == 0) {
    Enqueue({RecordBuilder(record, payload), std::move(keep), std::move(done)});
    return;
  }
  auto copy = std::make_shared<std::vector<uint8_t>>(bytes);
  uint8_t* to = copy->data();
  for (const ByteView& view : payload) {
    view.CopyTo(to);
    to += view.size();
  }
  const ByteView copied[] = {ByteView(copy->data(), bytes)};
  Enqueue({RecordBuilder(record, copied), std::move(copy), std::move(done)});
}

void ShardLog::Append(const std::vector<Record>& records, std::shared_ptr<const void> keep, Done done) {
  if (records.empty()) return Sync(std::move(done));
  std::vector<Item> items;
  items.reserve(records.size());
  for (const Record& record : records) items.push_back({RecordBuilder(record.message, record.payload), keep, nullptr});
  items.back().done = std::move(done);
  Enqueue(items);
}

void ShardLog::Sync(Done done) {
  bool durable = false;
  {
    MutexLock lock(&mu_);
    durable = !busy_ && queue_.empty() && failure_.ok();
  }
  if (!durable) {
    Enqueue({.done = std::move(done)});
  } else if (done != nullptr) {
    done(absl::OkStatus());
  }
}

absl::Status ShardLog::health() const {
  if (well_.load(std::memory_order_acquire)) return absl::OkStatus();
  MutexLock lock(&mu_);
  if (!failure_.ok()) return failure_;
  if (waiting_bytes_ <= options_.queue_bytes_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the log in ", options_.segments.dir, " is behind: ", waiting_bytes_, " bytes wait to be written"));
}

uint64_t ShardLog::Roll() { return Enqueue({.begins_segment = true}); }

void ShardLog::DropBefore(uint64_t mark) {
  std::vector<uint64_t> numbers;
  {
    MutexLock lock(&mu_);
    for (size_t i = 0; i + 1 < segments_.size() && segments_[i].end <= mark; ++i)
      numbers.push_back(segments_[i].number);
  }
  if (numbers.empty()) return;
  // The first one that is there must say what the log is, whatever happens to the rest of it.
  if (const absl::Status synced = SyncSegment(numbers.back() + 1); !synced.ok()) {
    LODESTONE_LOG(WARN, "log", "old segments stay error={}", synced.ToString());
    return;
  }
  for (const uint64_t number : numbers) {
    if (const absl::Status removed = RemoveFile(PathOf(number)); !removed.ok()) {
      // Tried again the next time; those after it stay, so that none is missing in the middle.
      LODESTONE_LOG(WARN, "log", "an old segment stays error={}", removed.ToString());
      return;
    }
    MutexLock lock(&mu_);
    if (segments_.front().number == number) segments_.pop_front();
  }
}

ShardLog::Stats ShardLog::stats() const {
  MutexLock lock(&mu_);
  Stats stats = {.records = committed_, .commits = commits_, .written = written_bytes_};
  for (const Segment& segment : segments_) stats.bytes += segment.bytes;
  return stats;
}

ShardLog::Wait ShardLog::wait(int64_t ms_min) const {
  {
    MutexLock lock(&mu_);
    if (!failure_.ok()) return {std::string(failure_.message()), time_.NowMs() - failed_ms_};
  }
  const int64_t since_ns = pace_->SinceNs(options_.segments.header.log());
  if (since_ns == 0) return {};
  const int64_t ms = (CommitClockNs() - since_ns) / 1'000'000;
  if (ms < ms_min) return {};
  return {absl::StrCat("a write to the log in ", options_.segments.dir, " is under way"), ms};
}

uint64_t ShardLog::Enqueue(std::span<Item> items) {
  uint64_t before = 0;
  {
    MutexLock lock(&mu_);
    before = appended_;
    for (Item& item : items) {
      if (item.record.bytes() > 0) ++appended_;
      waiting_bytes_ += item.record.bytes();
      queue_.push_back(std::move(item));
    }
    UpdateWell();
    if (busy_) return before;  // The thread that writes takes it from the queue.
    if (options_.segments.sync || !failure_.ok() || pace_->IsSlow(CommitClockNs())) {
      WakeThread();
      return before;
    }
    busy_ = true;
  }
  Commit();
  MutexLock lock(&mu_);
  busy_ = false;
  if (!queue_.empty() || !failure_.ok()) WakeThread();
  return before;
}

void ShardLog::WakeThread() {
  if (!thread_.joinable()) thread_ = Thread([this] { RunThread(); });
  wake_.NotifyOne();
}

void ShardLog::RunThread() {
  mu_.Lock();
  while (!stopping_) {
    const bool retry = !failure_.ok() && time_.NowMs() >= retry_at_ms_;
    if (busy_ || (queue_.empty() && failure_.ok())) {
      wake_.Wait(&mu_);
      continue;
    }
    if (queue_.empty() && !retry) {
      wake_.WaitForMs(&mu_, retry_at_ms_ - time_.NowMs());
      continue;
    }
    const bool commit = failure_.ok() || retry;
    busy_ = true;
    mu_.Unlock();
    if (commit) {
      Commit();
    } else {
      Refuse(TakeQueue());
    }
    mu_.Lock();
    busy_ = false;
  }
  mu_.Unlock();
}

void ShardLog::UpdateWell() {
  well_.store(failure_.ok() && waiting_bytes_ <= options_.queue_bytes_max, std::memory_order_release);
}

std::deque<ShardLog::Item> ShardLog::TakeQueue() {
  std::deque<Item> taken;
  MutexLock lock(&mu_);
  taken.swap(queue_);
  return taken;
}

void ShardLog::Commit() {
  for (Item& item : TakeQueue()) writing_.push_back(std::move(item));
  absl::Status status = writer_.Mend();
  while (status.ok() && !writing_.empty()) status = CommitGroup();
  if (!status.ok()) return Fail(status);
  bool healed = false;
  {
    MutexLock lock(&mu_);
    healed = !failure_.ok();
    failure_ = absl::OkStatus();
    UpdateWell();
  }
  if (healed) LODESTONE_LOG(INFO, "log", "the log is written again dir={}", options_.segments.dir);
}

absl::Status ShardLog::CommitGroup() {
  if (writing_.front().begins_segment) {
    if (!writer_.fresh()) LODESTONE_RETURN_IF_ERROR(BeginSegment());
    NoteCommit(0, 0);
    writing_.pop_front();
    return absl::OkStatus();
  }
  size_t items = 0;
  uint64_t records = 0, bytes = 0;
  pieces_.clear();
  const uint64_t before = writer_.bytes() + writer_.mark_bytes();
  for (const Item& item : writing_) {
    const uint64_t more = item.record.bytes();
    const bool fits = before + bytes + more <= options_.segment_bytes_max || (writer_.fresh() && bytes == 0);
    if (item.begins_segment || (more > 0 && !fits)) break;
    item.record.AppendPieces(&pieces_);
    bytes += more;
    records += more > 0;
    ++items;
  }
  if (items == 0) return BeginSegment();
  if (records > 0) LODESTONE_RETURN_IF_ERROR(WritePieces(bytes));
  NoteCommit(records, bytes);
  for (; items > 0; --items) {
    const Done done = std::move(writing_.front().done);
    writing_.pop_front();  // What it keeps goes before anybody is told.
    if (done != nullptr) done(absl::OkStatus());
  }
  return absl::OkStatus();
}

absl::Status ShardLog::BeginSegment() {
  const int64_t began_ns = CommitClockNs();
  pace_->Begin(options_.segments.header.log(), began_ns);
  const absl::Status status = writer_.Begin();
  pace_->End(options_.segments.header.log(), began_ns, CommitClockNs());
  return status;
}

absl::Status ShardLog::WritePieces(uint64_t bytes) {
  const int64_t began_ns = CommitClockNs();
  pace_->Begin(options_.segments.header.log(), began_ns);
  const absl::Status status = writer_.Write(pieces_, bytes);
  const int64_t ended_ns = CommitClockNs();
  pace_->End(options_.segments.header.log(), began_ns, ended_ns);
  if (status.ok()) commit_metric.ObserveNs(ended_ns - began_ns);
  return status;
}

void ShardLog::NoteCommit(uint64_t records, uint64_t bytes) {
  MutexLock lock(&mu_);
  // Also those that were begun and left before anything was committed to them: they are there, and go as the others do.
  for (uint64_t next = segments_.empty() ? writer_.number() : segments_.back().number + 1; next <= writer_.number();) {
    segments_.push_back({next++, writer_.header_bytes(), committed_});
  }
  committed_ += records;
  commits_ += records > 0;
  written_bytes_ += bytes;
  waiting_bytes_ -= bytes;
  segments_.back().bytes = writer_.bytes();
  segments_.back().end = committed_;
  UpdateWell();
}

void ShardLog::Fail(const absl::Status& status) {
  const absl::Status failure = absl::UnavailableError(absl::StrCat("the log cannot be written: ", status.message()));
  bool fresh = false;
  {
    MutexLock lock(&mu_);
    fresh = failure_.ok();
    if (fresh) failed_ms_ = time_.NowMs();
    failure_ = failure;
    retry_at_ms_ = time_.NowMs() + options_.retry_ms;
    UpdateWell();
  }
  if (fresh) LODESTONE_LOG(ERROR, "log", "pushes are refused until the log can be written error={}", status.ToString());
  Refuse(std::exchange(writing_, {}));
}

void ShardLog::Refuse(std::deque<Item> items) {
  absl::Status failure;
  {
    MutexLock lock(&mu_);
    failure = failure_;
  }
  for (Item& item : items) {
    const Done done = std::exchange(item.done, nullptr);
    if (item.record.bytes() > 0 || item.begins_segment) writing_.push_back(std::move(item));
    if (done != nullptr) done(failure);
  }
}

}  // namespace lodestone::server
