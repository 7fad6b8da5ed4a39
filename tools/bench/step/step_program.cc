#include "tools/bench/step/step_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tools/bench/harness/peer.h"

namespace lodestone::bench {
namespace {

// An answer comes after the time asked for, a quarter of it as warm-up, a step of each, and, the first time, the
// drawing of the data.
constexpr int64_t kAnswerNsMax = 180'000'000'000;
constexpr int kPollMs = 100;

}  // namespace

absl::StatusOr<std::unique_ptr<StepProgram>> StepProgram::Start(const std::string& name,
                                                                std::vector<std::string> argv) {
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<TemporaryFolder> folder, TemporaryFolder::Create());
  const std::string requests = folder->File("requests");
  if (mkfifo(requests.c_str(), 0600) != 0) return absl::ErrnoToStatus(errno, requests);
  const int fd = open(requests.c_str(), O_RDWR | O_CLOEXEC);  // For reading too: else it would wait for a reader.
  if (fd < 0) return absl::ErrnoToStatus(errno, requests);
  argv.push_back(requests);
  absl::StatusOr<std::unique_ptr<psctl::Child>> child = psctl::Child::Start(name, argv);
  if (!child.ok()) {
    close(fd);
    return child.status();
  }
  return std::unique_ptr<StepProgram>(new StepProgram(std::move(folder), fd, *std::move(child)));
}

absl::StatusOr<std::unique_ptr<StepProgram>> StepProgram::StartLocal(const Options& options,
                                                                     const std::vector<std::string>& flags) {
  std::vector<std::string> argv = {options.local_step_binary};
  argv.insert(argv.end(), flags.begin(), flags.end());
  return Start("local_step", std::move(argv));
}

StepProgram::~StepProgram() { close(requests_); }

absl::StatusOr<Sample> StepProgram::Ask(const std::string& request, double seconds) {
  const std::string line = absl::StrCat(request, " ", seconds, "\n");
  if (write(requests_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    return absl::ErrnoToStatus(errno, absl::StrCat("asking ", child_->name()));
  }
  std::string answer;
  const auto take = [&](absl::string_view text) {
    if (absl::StartsWith(text, "ok ") || absl::StartsWith(text, "error: ")) answer = std::string(text);
  };
  const int64_t deadline_ns = NowNs() + kAnswerNsMax;
  while (answer.empty() && !child_->Reap(take)) {
    if (NowNs() > deadline_ns) {
      return absl::DeadlineExceededError(absl::StrCat(child_->name(), ": no answer to ", request));
    }
    pollfd output = {child_->output_fd(), POLLIN, 0};
    poll(&output, 1, kPollMs);
    child_->ReadOutput(take);
  }
  if (answer.empty()) return absl::InternalError(child_->Outcome());
  Sample sample;
  std::string word;
  if (std::istringstream(answer) >> word >> sample.operations >> sample.seconds >> sample.client_cpu_seconds) {
    return sample;
  }
  return absl::FailedPreconditionError(absl::StrCat(child_->name(), ": ", answer));
}

}  // namespace lodestone::bench
