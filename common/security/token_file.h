// The token that a process shows to every ps: the one line of a file, which is read again when it changes.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/security/secret_file.h"

namespace lodestone {

class TokenFile {
 public:
  // Reads the file at `path`, and again, by `time` (which must outlive this), not more often than each `reload_ms`.
  // INVALID_ARGUMENT if it does not hold a token: letters, digits and what else HTTP takes in one; NOT_FOUND and so on.
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path, int64_t reload_ms,
                                                         const TimeSource* time);

  // The newest usable token. A file that cannot be read, or holds no token, is logged and does not replace it.
  std::string Get();

 private:
  TokenFile(const std::string& path, int64_t reload_ms, const TimeSource* time)
      : reload_ms_(reload_ms), time_(time), file_(path) {}

  absl::Status Refresh() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t reload_ms_;
  const TimeSource* const time_;

  Mutex mu_;
  WatchedFile file_ ABSL_GUARDED_BY(mu_);
  std::string token_ ABSL_GUARDED_BY(mu_);
  int64_t read_ms_ ABSL_GUARDED_BY(mu_) = 0;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone
