// Exit codes of psctl, and the error messages that go with them.
//
// Thread safety: pure, but for those that write a line on standard error, or look at standard output.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/config/options.h"

namespace lodestone::psctl {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;  // No, or it failed. (kExitUsage is 2, kExitUntrained 5.)
inline constexpr int kExitUnreachable = 3;
inline constexpr int kExitTimedOut = 4;
inline constexpr int kExitInterrupted = 130;

// What they mean, for --help.
inline constexpr char kExitCodes[] =
    "Exit codes: 0 done; 1 no, or it failed; 2 wrong command line or configuration; 3 no ps can be reached there; 4 "
    "it\n"
    "did not end in time (--timeout); 5 trained, but not all samples; 130 interrupted.";

// UNAVAILABLE, of a ps that cannot be reached, and not of one that says so.
absl::Status UnreachableError(absl::string_view message);
bool IsUnreachable(const absl::Status& status);

// The exit code of a command that ends with `status`.
int ExitCodeOf(const absl::Status& status);

// Says why `psctl VERB` failed, and returns the exit code. REQUIRES: `status` is not OK.
int Fail(absl::string_view verb, const absl::Status& status);
// The same for a wrong command line.
int FailUsage(absl::string_view verb, absl::string_view message);
// Says it only.
void Complain(absl::string_view verb, absl::string_view message);

// The exit code of a command that has printed all it has to say and would end with `exit_code`: kExitFailed instead of
// kExitDone, and a line that says so, if that did not get out (a full disk, say).
int AfterOutput(int exit_code);
// Waits up to `wait_ms`, or until nobody reads standard output any more; whether that is so.
bool NobodyReads(int wait_ms);

// INVALID_ARGUMENT "--address: …" unless it is host:port.
absl::Status CheckAddressFlag(const std::string& address);

// "2 s", "1.5 s", "250 ms".
std::string MillisText(int ms);

}  // namespace lodestone::psctl
