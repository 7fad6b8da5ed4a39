// Runs the psctl program in a terminal of its own, as a user would.
//
// Not thread-safe. The program is killed with this.
#pragma once

#include <sys/types.h>
#include <termios.h>

#include <string>
#include <vector>

namespace lodestone::psctl {

class TerminalRun {
 public:
  // `environment`: "NAME=value" of each variable, besides TERM.
  TerminalRun(const std::vector<std::string>& arguments, int columns, int lines,
              const std::vector<std::string>& environment = {});
  ~TerminalRun();
  TerminalRun(const TerminalRun&) = delete;
  TerminalRun& operator=(const TerminalRun&) = delete;

  // Reads until what has not been looked for yet holds `text`, and goes on behind it. False if the program ends
  // without.
  bool Await(const std::string& text);
  // The next picture, whole: its lines.
  std::vector<std::string> AwaitFrame();
  void Type(const std::string& keys);
  // The window has this size from now on.
  void Resize(int columns, int lines);
  void Signal(int signal);
  // Waits until a signal has stopped it.
  bool AwaitStop();
  // Waits for its end; its exit code, or -1 if it was killed.
  int AwaitEnd();
  // All that was written.
  const std::string& output() const { return output_; }
  // Whether keys reach the program only by lines, and are echoed, as in a shell.
  bool HasUsualSettings() const;

 private:
  // False if there will be nothing more.
  bool Read();

  int terminal_ = -1;
  pid_t pid_ = 0;
  bool ended_ = false;
  std::string output_;
  size_t seen_ = 0;  // Of the output.
};

}  // namespace lodestone::psctl
