// The ps program itself: its command line, files, signals and exit codes.

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

using ::testing::HasSubstr;

std::string TestFile(const std::string& name) { return std::string(std::getenv("TEST_TMPDIR")) + "/" + name; }

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

// A ps under test; killed if it still runs in the end.
class Ps {
 public:
  Ps(const std::string& name, const std::string& yaml, std::vector<std::string> arguments = {})
      : address_file(TestFile(name + ".address")), log(TestFile(name + ".log")) {
    const std::string config = TestFile(name + ".yaml");
    std::ofstream(config) << yaml;
    unlink(address_file.c_str());
    if (std::find(arguments.begin(), arguments.end(), "--address-file") == arguments.end()) {
      arguments.insert(arguments.begin(), {"--address-file", address_file});
    }
    arguments.insert(arguments.begin(), {"server/ps", "--config", config});
    pid_ = fork();
    if (pid_ != 0) return;
    const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Ps() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    Wait();
  }

  // The address, once it is written.
  std::string AwaitAddress() {
    while (access(address_file.c_str(), F_OK) != 0) {
      EXPECT_EQ(waitpid(pid_, nullptr, WNOHANG), 0) << Read(log);
      if (::testing::Test::HasFailure()) return "";
      std::this_thread::yield();
    }
    return Read(address_file);
  }
  void Signal(int signal) { kill(pid_, signal); }
  // What waitpid tells.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return status;
  }
  int ExitCode() {
    const int status = Wait();
    EXPECT_TRUE(WIFEXITED(status)) << Read(log);
    return WEXITSTATUS(status);
  }

  const std::string address_file;
  const std::string log;

 private:
  pid_t pid_ = 0;
};

TEST(PsProgram, WritesItsAddressAndEndsInGoodOrderOnSigterm) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Ps ps("one", "cluster: {servers: 1}\n");
    const std::string address = ps.AwaitAddress();
    EXPECT_EQ(address.rfind("127.0.0.1:", 0), 0) << address;
    EXPECT_EQ(address.back(), '\n');
    ps.Signal(signal);
    EXPECT_EQ(ps.ExitCode(), 0) << Read(ps.log);
  }
}

TEST(PsProgram, EndsInGoodOrderWhileItWaitsForOthers) {
  Ps ps("two", "cluster: {servers: 2}\n");
  EXPECT_NE(ps.AwaitAddress(), "");
  ps.Signal(SIGTERM);
  EXPECT_EQ(ps.ExitCode(), 0) << Read(ps.log);
}

TEST(PsProgram, FailsWithOneLineWhenItCannotListen) {
  Ps first("first", "cluster: {servers: 1}\n");
  std::string address = first.AwaitAddress();
  ASSERT_NE(address, "");
  address.pop_back();
  Ps second("second", "cluster: {servers: 1}\n", {"--set", "server.listen=" + address});
  EXPECT_EQ(second.ExitCode(), 1);
  const std::string log = Read(second.log);
  EXPECT_THAT(log, HasSubstr("cannot listen on " + address + ": Address already in use"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

TEST(PsProgram, FailsWhenTheOthersDoNotCome) {
  Ps ps("alone", "cluster: {servers: 2}\ncoordinator: {join_timeout_ms: 3000}\n");
  EXPECT_EQ(ps.ExitCode(), 1);
  EXPECT_THAT(Read(ps.log), HasSubstr("index 1 has not joined"));
}

TEST(PsProgram, RefusesABrokenConfiguration) {
  Ps ps("broken", "cluster: {servrs: 2}\n");
  EXPECT_EQ(ps.ExitCode(), 2);
  EXPECT_THAT(Read(ps.log), HasSubstr("servers"));
}

TEST(PsProgram, FailsWhenTheAddressFileCannotBeWritten) {
  Ps ps("nofile", "cluster: {servers: 1}\n", {"--address-file", TestFile("missing") + "/address"});
  EXPECT_EQ(ps.ExitCode(), 1);
  EXPECT_THAT(Read(ps.log), HasSubstr("cannot write --address-file"));
}

}  // namespace
