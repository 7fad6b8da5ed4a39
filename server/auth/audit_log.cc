#include "server/auth/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "nlohmann/json.hpp"

namespace lodestone::server {
namespace {

// Whether the file ends inside a line, as one whose disk was full does; false if that cannot be told.
bool EndsInsideLine(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode) || found.st_size == 0) return false;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return false;
  char last = '\n';
  const ssize_t bytes = pread(fd, &last, 1, found.st_size - 1);
  close(fd);
  return bytes == 1 && last != '\n';
}

}  // namespace

absl::StatusOr<std::unique_ptr<Audit>> Audit::Open(const std::string& path, const TimeSource* time) {
  std::unique_ptr<Audit> audit(new Audit(path, time));
  if (path.empty()) return audit;
  {
    MutexLock lock(&audit->mu_);
    LODESTONE_RETURN_IF_ERROR(audit->OpenFile());
  }
  return audit;
}

Audit::~Audit() {
  MutexLock lock(&mu_);
  for (auto& [identity, denials] : denials_) WriteUnwritten(identity, &denials);
  if (fd_ >= 0) close(fd_);
}

absl::Status Audit::OpenFile() {
  const int fd = open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("security.audit_log: ", path_, ": open"));
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
  inside_line_ = EndsInsideLine(path_);
  return absl::OkStatus();
}

void Audit::WriteLine(const std::string& line) {
  if (path_.empty()) {
    LODESTONE_LOG(INFO, "audit", "{}", line);
    return;
  }
  const std::string text = absl::StrCat(inside_line_ ? "\n" : "", line, "\n");
  size_t written = 0;
  absl::Status status;
  while (status.ok() && written < text.size()) {
    const ssize_t bytes = write(fd_, text.data() + written, text.size() - written);
    if (bytes >= 0) {
      written += static_cast<size_t>(bytes);
    } else if (errno != EINTR) {
      status = absl::ErrnoToStatus(errno, absl::StrCat("security.audit_log: ", path_, ": write"));
    }
  }
  if (written > 0) inside_line_ = text[written - 1] != '\n';
  if (!status.ok()) LODESTONE_LOG(ERROR, "audit", "{} (not in the audit log: {})", line, status.ToString());
  health_ = status;
}

std::string Audit::LineOf(const Entry& entry, const std::string& outcome) const {
  nlohmann::ordered_json line;
  line["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMillis(time_->NowMs()), absl::UTCTimeZone());
  line["identity"] = entry.identity;
  line["peer"] = entry.peer;
  if (!entry.agent.empty()) line["agent"] = entry.agent;
  line["method"] = entry.method;
  line["outcome"] = outcome;
  line["what"] = entry.what;
  return line.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace);
}

void Audit::Write(const Entry& entry, const std::string& outcome) {
  const std::string line = LineOf(entry, outcome);
  MutexLock lock(&mu_);
  WriteLine(line);
}

void Audit::WriteDenied(const Entry& entry) {
  MutexLock lock(&mu_);
  const int64_t now_ms = time_->NowMs();
  Denials& denials = denials_.try_emplace(entry.identity, now_ms).first->second;
  denials.denied_ms = now_ms;
  if (denials.bucket.Level(now_ms) < 1) {
    ++denials.unwritten;
    return;
  }
  denials.bucket.Take(1);
  WriteUnwritten(entry.identity, &denials);
  WriteLine(LineOf(entry, "denied"));
}

void Audit::WriteUnwritten(const std::string& identity, Denials* denials) {
  if (denials->unwritten == 0) return;
  Entry entry;
  entry.identity = identity;
  entry.what = absl::StrCat(std::exchange(denials->unwritten, 0), " more calls were denied, and are not listed singly");
  WriteLine(LineOf(entry, "denied"));
}

void Audit::CheckTime() {
  MutexLock lock(&mu_);
  for (auto& [identity, denials] : denials_) {
    if (time_->NowMs() - denials.denied_ms >= 1000) WriteUnwritten(identity, &denials);
  }
  struct stat there, here;
  if (fd_ < 0 || fstat(fd_, &here) != 0) return;
  const bool moved = stat(path_.c_str(), &there) != 0 || there.st_ino != here.st_ino || there.st_dev != here.st_dev;
  if (!moved) return;
  if (const absl::Status status = OpenFile(); !status.ok()) health_ = status;
}

absl::Status Audit::health() const {
  MutexLock lock(&mu_);
  return health_;
}

}  // namespace lodestone::server
