#include "common/security/token_file.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"

namespace lodestone {
namespace {

constexpr size_t kTokenBytesMax = 4096;  // More would not fit into a call's metadata beside the rest.

// What RFC 6750 allows in a bearer token.
bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::string_view("-._~+/=").find(c) != std::string::npos;
}

absl::StatusOr<std::string> TokenOf(const std::string& content, const std::string& path) {
  const absl::string_view token = absl::StripAsciiWhitespace(content);
  if (token.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no token"));
  if (token.size() > kTokenBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the token is longer than ", kTokenBytesMax, " bytes"));
  }
  if (!std::all_of(token.begin(), token.end(), IsTokenCharacter)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a token is one line of letters, digits and -._~+/=, and this has something else"));
  }
  return std::string(token);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TokenFile>> TokenFile::Open(const std::string& path, int64_t reload_ms,
                                                           const TimeSource* time) {
  std::unique_ptr<TokenFile> file(new TokenFile(path, reload_ms, time));
  MutexLock lock(&file->mu_);
  LODESTONE_RETURN_IF_ERROR(file->Refresh());
  return file;
}

absl::Status TokenFile::Refresh() {
  read_ms_ = time_->NowMs();
  LODESTONE_ASSIGN_OR_RETURN(const bool changed, file_.Refresh());
  if (!changed) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(token_, TokenOf(file_.content(), file_.path()));
  return absl::OkStatus();
}

std::string TokenFile::Get() {
  MutexLock lock(&mu_);
  if (time_->NowMs() - read_ms_ < reload_ms_) return token_;
  const absl::Status status = Refresh();
  if (!status.ok() && !broken_) {
    LODESTONE_LOG(WARN, "security", "the new token cannot be used, the previous one remains: {}", status.ToString());
  }
  broken_ = !status.ok();
  return token_;
}

}  // namespace lodestone
