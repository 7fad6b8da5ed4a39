#include "server/wal/update_log.h"

#include <fcntl.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/io/file.h"

namespace lodestone::server {

UpdateLog::Hold::Hold(UpdateLog* log) : log_(log) {
  MutexLock lock(&log_->mu_);
  if (log_->holds_++ > 0) return;
  log_->held_since_ms_ = log_->time_.NowMs();
  log_->held_bytes_.reset();
}

UpdateLog::Hold::~Hold() {
  MutexLock lock(&log_->mu_);
  --log_->holds_;
}

bool UpdateLog::Held(uint64_t log_bytes) {
  MutexLock lock(&mu_);
  if (holds_ == 0) return false;
  if (!held_bytes_.has_value()) held_bytes_ = log_bytes;
  return time_.NowMs() - held_since_ms_ < limits::kCatchUpHoldMs &&
         log_bytes < *held_bytes_ + limits::kCatchUpHoldBytes;
}

absl::StatusOr<std::unique_ptr<LogReader>> MissedUpdates::Open(const LogSegments& log) const {
  const bool former = log.front().generation < log_.header().generation();  // It was sealed when it was replayed.
  return LogReader::Open({.dir = log_.dir(), .expected = log_.header(), .sealed = former}, log);
}

absl::StatusOr<std::map<uint64_t, std::vector<LogSegments>>> MissedUpdates::List() const {
  LODESTONE_ASSIGN_OR_RETURN(std::vector<LogSegments> logs, ListLogs(log_.dir()));
  std::map<uint64_t, std::vector<LogSegments>> generations;
  for (LogSegments& log : logs) {
    if (log.front().generation == log_.header().generation()) log.pop_back();
    if (!log.empty()) generations[log.front().generation].push_back(std::move(log));
  }
  return generations;
}

absl::Status MissedUpdates::Find(const std::vector<Copy>& copies, const std::map<ShardId, Version>& upto) {
  std::map<ShardId, Sought> sought;
  for (const Copy& copy : copies) {
    const auto end = upto.find(copy.shard);
    if (end == upto.end() || copy.at.mark == 0 || copy.at.version == 0 || copy.at.version > end->second) continue;
    sought[copy.shard] = {.copy = copy, .upto = end->second};
  }
  LODESTONE_ASSIGN_OR_RETURN(const auto generations, List());
  uint64_t look_bytes = look_bytes_max_;
  for (auto logs = generations.rbegin(); logs != generations.rend(); ++logs) {
    LODESTONE_RETURN_IF_ERROR(LookInGeneration(logs->second, &look_bytes, &sought));
  }
  for (const auto& [shard, one] : sought) {
    if (!one.found.has_value()) continue;
    copies_[shard] = {.start = one.copy, .from = *one.found, .version = one.copy.at.version};
  }
  return absl::OkStatus();
}

absl::Status MissedUpdates::LookInGeneration(std::vector<LogSegments> logs, uint64_t* look_bytes,
                                             std::map<ShardId, Sought>* sought) const {
  for (auto& [shard, one] : *sought) one.in_log.reset();
  // The newest segment of each log, then the ones before: all of a shard's records are in one of the logs.
  for (bool any = true; any;) {
    any = false;
    for (LogSegments& log : logs) {
      const bool wanted = !log.empty() && std::any_of(sought->begin(), sought->end(), [&log](const auto& entry) {
        return !entry.second.settled() && entry.second.in_log.value_or(log.front().log) == log.front().log;
      });
      if (!wanted) continue;
      LODESTONE_ASSIGN_OR_RETURN(const File file, File::Open(SegmentPath(log_.dir(), log.back()), O_RDONLY));
      LODESTONE_ASSIGN_OR_RETURN(const uint64_t bytes, file.Size());
      if (bytes > *look_bytes) {
        log.clear();
        continue;
      }
      *look_bytes -= bytes;
      LODESTONE_RETURN_IF_ERROR(LookInSegment(log.back(), sought));
      log.pop_back();
      any = true;
    }
  }
  return absl::OkStatus();
}

absl::Status MissedUpdates::LookInSegment(const SegmentId& segment, std::map<ShardId, Sought>* sought) const {
  struct Run {
    Step first, last;  // Of the records that follow each other up to the segment's end.
    bool all = true;   // Those are all records of the shard in the segment.
    bool found = false;
  };
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<LogReader> reader, Open({segment}));
  std::map<ShardId, Run> runs;
  v1::LogRecord record;
  ByteView payload;
  for (;;) {
    LODESTONE_ASSIGN_OR_RETURN(const bool there, reader->Next(&record, &payload));
    if (!there) break;
    const auto one = record.version() == 0 ? sought->end() : sought->find(record.shard());
    if (one == sought->end() || one->second.settled()) continue;
    const Step step = StepOf(*reader, record);
    const auto [run, fresh] = runs.try_emplace(record.shard(), Run{.first = step});
    if (!fresh && !step.Follows(run->second.last)) run->second = {.first = step, .all = false};
    run->second.last = step;
    run->second.found |= Made(record, one->second.copy);
  }
  for (const auto& [shard, run] : runs) {
    Sought& one = sought->at(shard);
    one.in_log = segment.log;
    const bool leads = one.first.has_value() ? one.first->Follows(run.last)
                                             : run.last.lineage == one.copy.lineage && run.last.version >= one.upto;
    if (leads && run.found) {
      one.found = segment;
    } else if (!leads || !run.all || run.first.version <= one.copy.at.version) {
      one.broken = true;
    }
    one.first = run.first;
  }
  return absl::OkStatus();
}

absl::Status MissedUpdates::Read(const std::map<ShardId, Version>& upto, const Visitor& visit) {
  std::map<ShardId, Version> lacking;
  for (const auto& [shard, version] : upto) {
    if (copies_.at(shard).version < version) lacking.emplace(shard, version);
  }
  if (lacking.empty()) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const auto generations, List());
  for (const auto& [generation, logs] : generations) {
    for (LogSegments log : logs) {
      // From where the first of them is; of later generations all.
      uint64_t from = UINT64_MAX;
      for (const auto& [shard, version] : lacking) {
        const SegmentId& at = copies_.at(shard).from;
        if (at.generation < generation) from = 0;
        if (at.generation == generation && at.log == log.front().log) from = std::min(from, at.segment);
      }
      std::erase_if(log, [from](const SegmentId& segment) { return segment.segment < from; });
      if (!log.empty()) LODESTONE_RETURN_IF_ERROR(ReadLog(log, visit, &lacking));
    }
  }
  for (const auto& [shard, version] : lacking) copies_.erase(shard);
  return absl::OkStatus();
}

absl::Status MissedUpdates::ReadLog(const LogSegments& log, const Visitor& visit, std::map<ShardId, Version>* lacking) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<LogReader> reader, Open(log));
  v1::LogRecord record;
  ByteView payload;
  while (!lacking->empty()) {
    LODESTONE_ASSIGN_OR_RETURN(const bool there, reader->Next(&record, &payload));
    if (!there) break;
    const auto upto = record.version() == 0 ? lacking->end() : lacking->find(record.shard());
    if (upto == lacking->end()) continue;
    Progress& copy = copies_.at(record.shard());
    LODESTONE_ASSIGN_OR_RETURN(const bool continues,
                               Take(StepOf(*reader, record), record, payload, upto->second, visit, &copy));
    if (!continues) {
      copies_.erase(record.shard());
      lacking->erase(upto);
      continue;
    }
    if (copy.begun && record.version() <= upto->second) copy.from = reader->segment();
    if (copy.version >= upto->second && copy.whole) lacking->erase(upto);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> MissedUpdates::Take(const Step& step, const v1::LogRecord& record, const ByteView& payload,
                                         Version upto, const Visitor& visit, Progress* copy) {
  if (!copy->begun) {
    copy->begun = Made(record, copy->start);
    copy->lineage = step.lineage;
    copy->term = step.term;
    return true;
  }
  if (step.version < copy->version || (step.version == copy->version && copy->whole)) return true;  // It has that.
  if (step.version > upto) return true;
  if (!step.Follows({.version = copy->version, .lineage = copy->lineage, .term = copy->term})) return false;
  // A copy of a state is of its owner's term, whatever its newest update is of.
  const bool first = copy->version == copy->start.at.version;
  if (first && step.term != copy->start.term && step.term_before != copy->start.term) return false;
  LODESTONE_RETURN_IF_ERROR(visit(record, payload));
  copy->version = step.version;
  copy->lineage = step.lineage;
  copy->term = step.term;
  copy->whole = !record.has_restored() || record.restored().last();
  return true;
}

}  // namespace lodestone::server
