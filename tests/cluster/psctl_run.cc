#include "tests/cluster/psctl_run.h"

#include <ctype.h>
#include <dirent.h>
#include <poll.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <limits>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

// What /proc says of a process; parent 0 if there is none.
struct ProcessStat {
  char state = 'X';
  pid_t parent = 0;
};

ProcessStat StatOf(const std::string& pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::stringstream text;
  text << file.rdbuf();
  const std::string line = text.str();
  const size_t close = line.rfind(')');  // Of the name, which may hold anything.
  ProcessStat stat;
  if (close != std::string::npos) std::istringstream(line.substr(close + 1)) >> stat.state >> stat.parent;
  return stat;
}

// The file name of the program that the process runs.
std::string ProgramOf(const std::string& pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"));
  std::string path;
  std::getline(file, path, '\0');
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

PsctlRun::PsctlRun(const std::vector<std::string>& arguments) {
  setenv("TMPDIR", std::getenv("TEST_TMPDIR"), /*overwrite=*/1);  // A killed psctl leaves its folder there.
  std::vector<std::string> argv = {ProjectFile("tools/psctl/psctl")};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  absl::StatusOr<std::unique_ptr<psctl::Child>> child = psctl::Child::Start("psctl", argv);
  if (!child.ok()) {
    std::cerr << child.status() << std::endl;
    std::abort();
  }
  child_ = *std::move(child);
}

void PsctlRun::Read(int timeout_ms) {
  pollfd wait = {child_->output_fd(), POLLIN, 0};
  poll(&wait, 1, timeout_ms);
  child_->ReadOutput([this](absl::string_view line) { absl::StrAppend(&output_, line, "\n"); });
}

bool PsctlRun::WaitForOutput(const std::string& text) {
  return WaitForOutput([&](const std::string& output) { return absl::StrContains(output, text); });
}

bool PsctlRun::WaitForOutput(const std::function<bool(const std::string& output)>& holds) {
  while (!holds(output_) && child_->output_fd() >= 0) Read();
  return holds(output_);
}

std::string PsctlRun::WaitForEnd() {
  while (child_->output_fd() >= 0) Read();
  while (!child_->Reap([](absl::string_view) {})) poll(nullptr, 0, 1);
  const std::string outcome = child_->Outcome();
  return outcome.substr(outcome.find(") ") + 2);
}

std::vector<pid_t> PsctlRun::Processes(const std::string& program) const {
  std::vector<pid_t> found;
  DIR* const folder = opendir("/proc");
  if (folder == nullptr) return found;
  while (const dirent* entry = readdir(folder)) {
    if (!isdigit(entry->d_name[0])) continue;
    const std::string pid = entry->d_name;
    if (StatOf(pid).parent == child_->pid() && (program.empty() || ProgramOf(pid) == program)) {
      found.push_back(std::stoi(pid));
    }
  }
  closedir(folder);
  return found;
}

std::string ProjectFile(const std::string& path) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/", path);
}

std::string TestFile(const std::string& name) { return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name); }

bool Lives(pid_t pid) {
  const ProcessStat stat = StatOf(std::to_string(pid));
  return stat.parent != 0 && stat.state != 'Z';
}

psctl::RunSummary TrainLocally(const std::string& config, const std::vector<std::string>& arguments) {
  const std::string summary_file = TestFile(config + ".json");
  std::remove(summary_file.c_str());
  std::vector<std::string> all = {"local", ProjectFile(absl::StrCat("configs/", config, ".yaml")), "--summary",
                                  summary_file};
  all.insert(all.end(), arguments.begin(), arguments.end());
  PsctlRun run(all);
  EXPECT_EQ(run.WaitForEnd(), "ended") << run.output();
  absl::StatusOr<psctl::RunSummary> summary = psctl::ReadSummary(summary_file);
  EXPECT_TRUE(summary.ok()) << summary.status();
  if (!summary.ok()) return psctl::RunSummary();
  std::cout << psctl::ToTable(*summary);
  return *std::move(summary);
}

double MetricOf(const psctl::Metrics& metrics, const std::string& name) {
  for (const auto& [metric, value] : metrics) {
    if (metric == name) return value;
  }
  ADD_FAILURE() << "there is no metric " << name;
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace lodestone
