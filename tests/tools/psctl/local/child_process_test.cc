#include "tools/psctl/local/child_process.h"

#include <poll.h>
#include <signal.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Child> Shell(const std::string& script) {
  absl::StatusOr<std::unique_ptr<Child>> child = Child::Start("worker 1", {"/bin/sh", "-c", script});
  EXPECT_TRUE(child.ok()) << child.status();
  return *std::move(child);
}

// All lines until the child ends.
std::vector<std::string> LinesUntilEnd(Child* child) {
  std::vector<std::string> lines;
  const Child::OnLine add = [&](absl::string_view line) { lines.emplace_back(line); };
  while (child->output_fd() >= 0) {
    pollfd wait = {child->output_fd(), POLLIN, 0};
    poll(&wait, 1, -1);
    child->ReadOutput(add);
  }
  while (!child->Reap(add)) poll(nullptr, 0, 1);
  return lines;
}

TEST(Child, PassesOnTheLinesOfBothOutputsInOrder) {
  const std::unique_ptr<Child> child = Shell("echo one; echo two >&2; printf three");
  EXPECT_THAT(LinesUntilEnd(child.get()), ElementsAre("one", "two", "three"));
  EXPECT_TRUE(child->succeeded());
  EXPECT_THAT(child->Outcome(), HasSubstr("ended"));
}

TEST(Child, CutsAnEndlessLine) {
  const std::unique_ptr<Child> child = Shell("head -c 200000 /dev/zero | tr '\\0' x");
  const std::vector<std::string> lines = LinesUntilEnd(child.get());
  size_t bytes = 0;
  for (const std::string& line : lines) bytes += line.size();
  EXPECT_GT(lines.size(), 1u);
  EXPECT_EQ(bytes, 200000u);
}

TEST(Child, OutcomeTellsTheExitCodeAndTheErrorLine) {
  const std::unique_ptr<Child> child = Shell("echo first; echo 'ERROR the disk is full'; echo bye; exit 3");
  LinesUntilEnd(child.get());
  EXPECT_FALSE(child->succeeded());
  EXPECT_EQ(child->Outcome(),
            "worker 1 (pid " + std::to_string(child->pid()) + ") failed with exit code 3: ERROR the disk is full");
}

TEST(Child, OutcomeTellsTheLastLineIfNoneIsAnError) {
  const std::unique_ptr<Child> child = Shell("echo first; echo last; exit 1");
  LinesUntilEnd(child.get());
  EXPECT_THAT(child->Outcome(), HasSubstr("exit code 1: last"));
}

TEST(Child, OutcomeTellsTheSignal) {
  const std::unique_ptr<Child> child = Shell("kill -9 $$");
  LinesUntilEnd(child.get());
  EXPECT_FALSE(child->succeeded());
  EXPECT_THAT(child->Outcome(), HasSubstr("was killed by signal 9 (Killed)"));
}

TEST(Child, AProgramThatIsNotThereIsAnErrorWithItsPath) {
  const absl::StatusOr<std::unique_ptr<Child>> child = Child::Start("ps 0", {"/nowhere/ps"});
  ASSERT_FALSE(child.ok());
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("starting ps 0 (/nowhere/ps)"));
}

TEST(Child, HasAnEmptyStandardInput) {
  const std::unique_ptr<Child> child = Shell("cat; echo end");
  EXPECT_THAT(LinesUntilEnd(child.get()), ElementsAre("end"));
}

TEST(Child, StartsWithSignalsUnblocked) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  const std::unique_ptr<Child> child = Shell("kill -TERM $$; echo survived");
  LinesUntilEnd(child.get());
  sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_THAT(child->Outcome(), HasSubstr("signal 15"));
}

TEST(Child, DestructionKillsTheWholeGroup) {
  pid_t grandchild = 0;
  {
    const std::unique_ptr<Child> child = Shell("trap '' TERM; sleep 1000 & echo $!; wait");
    while (grandchild == 0) {
      pollfd wait = {child->output_fd(), POLLIN, 0};
      poll(&wait, 1, -1);
      child->ReadOutput([&](absl::string_view line) { grandchild = std::stoi(std::string(line)); });
    }
    EXPECT_EQ(kill(grandchild, 0), 0);
    child->Signal(SIGTERM);  // The shell ignores it.
  }
  // It is no child of ours, so the process that adopts it reaps it, soon; dead it is at once.
  while (kill(grandchild, 0) == 0) {
    std::FILE* stat = std::fopen(("/proc/" + std::to_string(grandchild) + "/stat").c_str(), "r");
    if (stat == nullptr) break;
    char state = 0;
    const bool known = std::fscanf(stat, "%*d %*s %c", &state) == 1;
    std::fclose(stat);
    if (!known || state == 'Z') break;  // It may be reaped between the two calls.
    poll(nullptr, 0, 1);
  }
}

}  // namespace
}  // namespace lodestone::psctl
