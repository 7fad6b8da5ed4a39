// The audit log: a JSON object per line for each call that only an admin may make and each call that was denied.
//   {"time":"2026-11-21T04:00:00.123Z","identity":"alice","peer":"ipv4:10.0.0.7:51234",
//    "method":"/lodestone.v1.Admin/Rollback","outcome":"OK","what":"embedding to before-change"}
// `outcome` is "admitted" for a call that goes on, the name of a status code for one that has ended, or "denied".
// `identity` is empty for an unknown caller. `peer` is empty for calls that are denied before they reach a service;
// "agent" then has the name of the calling program.
//
// Denied calls of one identity (or of all unknown callers together) are written up to a rate; the others are counted,
// and their number is written in a line of its own, so that a flood does not fill the disk.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/token_bucket.h"

namespace lodestone::server {

// The limit on lines about denied calls of one identity: at once, and per second.
inline constexpr int kAuditDeniedBurst = 20;
inline constexpr int kAuditDeniedPerSecond = 2;

class Audit {
 public:
  // Appends to the file at `path`, created with mode 0600; "": to the process's log. `time` (milliseconds since 1970,
  // as of AnchoredTime) must outlive this.
  static absl::StatusOr<std::unique_ptr<Audit>> Open(const std::string& path, const TimeSource* time);
  // Writes the numbers of denied calls that are still unwritten.
  ~Audit();

  struct Entry {
    std::string identity;
    std::string peer;
    std::string agent;
    std::string method;
    std::string what;
  };
  // A call of an admin and its outcome.
  void Write(const Entry& entry, const std::string& outcome);
  // A denied call; `entry.what` is the reason.
  void WriteDenied(const Entry& entry);

  // Writes how many denied calls were not written, about once a second, and reopens the file if it was moved away.
  void CheckTime();

  // OK, or the reason why lines are in the process's log instead of the file.
  absl::Status health() const;

 private:
  // Of one identity.
  struct Denials {
    explicit Denials(int64_t now_ms) : bucket(kAuditDeniedPerSecond, kAuditDeniedBurst, now_ms), denied_ms(now_ms) {}

    TokenBucket bucket;  // A token: one line.
    int64_t denied_ms;   // Of the last one.
    uint64_t unwritten = 0;
  };

  Audit(std::string path, const TimeSource* time) : path_(std::move(path)), time_(time) {}

  absl::Status OpenFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes a line of its own: after a part of one, of a write that failed, it begins another.
  void WriteLine(const std::string& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WriteUnwritten(const std::string& identity, Denials* denials) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string LineOf(const Entry& entry, const std::string& outcome) const;

  const std::string path_;
  const TimeSource* const time_;

  mutable Mutex mu_;
  int fd_ ABSL_GUARDED_BY(mu_) = -1;
  bool inside_line_ ABSL_GUARDED_BY(mu_) = false;  // The file ends without a newline.
  absl::Status health_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, Denials> denials_ ABSL_GUARDED_BY(mu_);  // By identity.
};

}  // namespace lodestone::server
