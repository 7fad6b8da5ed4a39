#include "tools/psctl/text/exit_code.h"

#include <poll.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/status.h"

namespace lodestone::psctl {
namespace {

constexpr char kUnreachable[] = "lodestone/unreachable";  // The payload that marks it.

}  // namespace

absl::Status UnreachableError(absl::string_view message) {
  absl::Status status = absl::UnavailableError(message);
  status.SetPayload(kUnreachable, absl::Cord());
  return status;
}

bool IsUnreachable(const absl::Status& status) { return status.GetPayload(kUnreachable).has_value(); }

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return kExitDone;
  if (IsUnreachable(status)) return kExitUnreachable;
  return absl::IsDeadlineExceeded(status) ? kExitTimedOut : kExitFailed;
}

void Complain(absl::string_view verb, absl::string_view message) {
  const std::string line = absl::StrCat("psctl ", verb, ": ", message, "\n");
  std::fputs(line.c_str(), stderr);
}

int Fail(absl::string_view verb, const absl::Status& status) {
  Complain(verb, status.message());
  return ExitCodeOf(status);
}

int FailUsage(absl::string_view verb, absl::string_view message) {
  Complain(verb, message);
  return kExitUsage;
}

int AfterOutput(int exit_code) {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return exit_code;
  // Who has left knows.
  if (!NobodyReads(0)) std::fputs("psctl: what it prints could not be written to standard output\n", stderr);
  return exit_code == kExitDone ? kExitFailed : exit_code;
}

bool NobodyReads(int wait_ms) {
  pollfd output = {STDOUT_FILENO, 0, 0};
  return poll(&output, 1, wait_ms) > 0;  // With no events requested it reports errors only.
}

absl::Status CheckAddressFlag(const std::string& address) {
  return Annotate(ParseHostPort(address).status(), "--address");
}

std::string MillisText(int ms) { return ms < 1000 ? absl::StrCat(ms, " ms") : absl::StrCat(ms / 1000.0, " s"); }

}  // namespace lodestone::psctl
