#include "tools/psctl/text/console.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace lodestone::psctl {
namespace {

// A console that writes into a pipe.
class ConsoleTest : public testing::Test {
 protected:
  ConsoleTest() { EXPECT_EQ(pipe2(pipe_, O_NONBLOCK | O_CLOEXEC), 0); }
  ~ConsoleTest() override {
    close(pipe_[0]);
    close(pipe_[1]);
  }
  // What has been written since the last call.
  std::string Written() {
    char buffer[65536];
    const ssize_t got = read(pipe_[0], buffer, sizeof(buffer));
    return got <= 0 ? "" : std::string(buffer, got);
  }
  int pipe_[2];
};

TEST_F(ConsoleTest, WithoutATerminalThereAreOnlyPlainLines) {
  Console console(pipe_[1], /*terminal=*/false);
  console.SetBar("50 %");
  console.PrintFrom("ps 0", 0, "hello");
  console.Print("done");
  EXPECT_EQ(Written(), "ps 0 | hello\ndone\n");
}

TEST_F(ConsoleTest, OnATerminalTheBarStaysBelowTheLines) {
  Console console(pipe_[1], /*terminal=*/true);
  console.SetBar("50 %");
  EXPECT_EQ(Written(), "\r\x1b[K50 %");
  console.Print("hello");
  EXPECT_EQ(Written(), "\r\x1b[Khello\n50 %");
  console.SetBar("");
  EXPECT_EQ(Written(), "\r\x1b[K");
  console.Print("done");
  EXPECT_EQ(Written(), "done\n");
}

TEST_F(ConsoleTest, OnATerminalSourcesAreColoured) {
  Console console(pipe_[1], /*terminal=*/true);
  console.PrintFrom("ps 0", 0, "hello");
  EXPECT_EQ(Written(), "\x1b[36mps 0 |\x1b[0m hello\n");
}

TEST_F(ConsoleTest, ABarIsCutToTheTerminalsWidth) {
  Console console(pipe_[1], /*terminal=*/true);
  console.SetBar(std::string(1000, 'x'));
  EXPECT_EQ(Written(), "\r\x1b[K" + std::string(console.width() - 1, 'x'));
}

TEST_F(ConsoleTest, TheBarIsRemovedAtTheEnd) {
  {
    Console console(pipe_[1], /*terminal=*/true);
    console.SetBar("50 %");
    Written();
  }
  EXPECT_EQ(Written(), "\r\x1b[K");
}

TEST(Console, APipeIsNoTerminal) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(Console::IsTerminal(ends[1]));
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace lodestone::psctl
