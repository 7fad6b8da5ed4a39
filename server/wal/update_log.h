// The updates that the logs of a ps keep on the disk, to be read again for copies that lack some of them.
//
// Thread-safe. A reader holds the segments meanwhile: checkpoints then let them stay, for a bounded time and up to
// a bounded size.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_view.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/log.pb.h"
#include "server/wal/log_reader.h"
#include "server/wal/update_mark.h"

namespace lodestone::server {

class UpdateLog {
 public:
  // `dir`: the logs' folder. `header`: what this life's logs bear. `newest`: by shard, the updates that made what the
  // ps brought back.
  UpdateLog(std::string dir, v1::SegmentHeader header, std::vector<MarkedVersion> newest)
      : dir_(std::move(dir)), header_(std::move(header)), newest_(std::move(newest)) {}
  UpdateLog(const UpdateLog&) = delete;
  UpdateLog& operator=(const UpdateLog&) = delete;

  const std::string& dir() const { return dir_; }
  const v1::SegmentHeader& header() const { return header_; }
  const std::vector<MarkedVersion>& newest() const { return newest_; }

  // Segments that are there stay while one of these lives.
  class Hold {
   public:
    explicit Hold(UpdateLog* log);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    UpdateLog* const log_;
  };
  // Whether segments are to stay, where the logs have `log_bytes` now. Not for longer, and not for more, than
  // limits::kCatchUpHoldMs and kCatchUpHoldBytes say.
  bool Held(uint64_t log_bytes);

 private:
  const std::string dir_;
  const v1::SegmentHeader header_;
  const std::vector<MarkedVersion> newest_;
  const SteadyTime time_;

  Mutex mu_;
  size_t holds_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t held_since_ms_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<uint64_t> held_bytes_ ABSL_GUARDED_BY(mu_);  // Of the logs, when they were first asked about.
};

// The updates that copies of some shards lack, read from an owner's log in order.
//
// Not thread-safe. The log must outlive it, and be held.
class MissedUpdates {
 public:
  // A copy: the shard, whose owner's lineage that is, at a version, by the term that it is of there and the mark of the
  // update that made it.
  struct Copy {
    ShardId shard = 0;
    uint64_t lineage = 0;
    uint64_t term = 0;
    MarkedVersion at;
  };
  // Takes a record of a copy's shard that comes next, and its payload, valid during the call.
  using Visitor = std::function<absl::Status(const v1::LogRecord& record, const ByteView& payload)>;

  // Looks at segments of `look_bytes_max` together at most.
  MissedUpdates(const UpdateLog* log, uint64_t look_bytes_max) : log_(*log), look_bytes_max_(look_bytes_max) {}

  // Whether the shard is one of the copies, and where its copy is now.
  bool Has(ShardId shard) const { return copies_.contains(shard); }
  Version VersionOf(ShardId shard) const { return copies_.at(shard).version; }

  // Adds those of `copies` of which the log has the update that made them, and all after it up to `upto` of the shard.
  // REQUIRES: all up to there is in segments that are not written any more.
  absl::Status Find(const std::vector<Copy>& copies, const std::map<ShardId, Version>& upto);
  // Visits what the copies lack up to `upto` of their shards; these have it then. Those of which the log turns out not
  // to have it are copies no more. The error of a visit, or of the disk. REQUIRES: as Find; each shard of `upto` is one
  // of the copies.
  absl::Status Read(const std::map<ShardId, Version>& upto, const Visitor& visit);

 private:
  // What a record says of the order of updates.
  struct Step {
    Version version = 0;
    uint64_t lineage = 0;
    uint64_t term = 0;
    uint64_t term_before = 0;

    // Whether it is the update after `before`, or a further piece of that.
    bool Follows(const Step& before) const {
      if (lineage != before.lineage) return false;
      return version == before.version ? term == before.term
                                       : version == before.version + 1 && term_before == before.term;
    }
  };
  struct Progress {
    Copy start;
    SegmentId from;        // Where its newest record is.
    Version version = 0;   // What it has, or is having the rest of.
    uint64_t lineage = 0;  // Of the update that made that, as logged; and its term.
    uint64_t term = 0;
    bool begun = false;  // The update that made the copy was come to.
    bool whole = true;   // No piece of `version` must follow.
  };
  // A copy whose update is being looked for, from the newest segment backwards.
  struct Sought {
    Copy copy;
    Version upto = 0;
    // The first record of those that lead to `upto` without a gap, as far as was looked.
    std::optional<Step> first;
    std::optional<SegmentId> found;  // Where its update is.
    bool broken = false;             // The log does not lead from it to `upto`.
    std::optional<uint32_t> in_log;  // Of the generation that is looked at.
    bool settled() const { return found.has_value() || broken; }
  };

  // Of the record that `reader` has read last.
  static Step StepOf(const LogReader& reader, const v1::LogRecord& record) {
    return {.version = record.version(),
            .lineage = reader.LineageOf(record),
            .term = record.term(),
            .term_before = TermBefore(record)};
  }
  // Whether it made what the copy is.
  static bool Made(const v1::LogRecord& record, const Copy& copy) {
    return record.version() == copy.at.version && MarkOf(record) == copy.at.mark;
  }
  absl::StatusOr<std::unique_ptr<LogReader>> Open(const LogSegments& log) const;
  // The logs, the oldest generation first, without the segments that are being written.
  absl::StatusOr<std::map<uint64_t, std::vector<LogSegments>>> List() const;
  // Looks for the updates of `sought` in the logs of one generation, as far as `look_bytes` goes, which it reduces.
  absl::Status LookInGeneration(std::vector<LogSegments> logs, uint64_t* look_bytes,
                                std::map<ShardId, Sought>* sought) const;
  absl::Status LookInSegment(const SegmentId& segment, std::map<ShardId, Sought>* sought) const;
  // Reads `log` until nothing of `lacking` is lacking any more.
  absl::Status ReadLog(const LogSegments& log, const Visitor& visit, std::map<ShardId, Version>* lacking);
  // Visits `record`, which is `step`, if it is what its copy lacks next, up to `upto`. False: the log goes another way.
  static absl::StatusOr<bool> Take(const Step& step, const v1::LogRecord& record, const ByteView& payload, Version upto,
                                   const Visitor& visit, Progress* copy);

  const UpdateLog& log_;
  const uint64_t look_bytes_max_;
  std::map<ShardId, Progress> copies_;
};

}  // namespace lodestone::server
