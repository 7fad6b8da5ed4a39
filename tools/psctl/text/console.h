// Output of a command's messages: whole lines, and on a terminal one status bar below them.
//
// Not thread-safe.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace lodestone::psctl {

class Console {
 public:
  // Writes to `fd`. `terminal`: it shows colours (unless ForbidsColor) and a bar that is redrawn in place.
  Console(int fd, bool terminal) : fd_(fd), terminal_(terminal) {}
  // Removes the bar.
  ~Console() { SetBar(""); }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Whether `fd` is a terminal that can redraw a line.
  static bool IsTerminal(int fd);

  bool terminal() const { return terminal_; }
  // Columns of the terminal.
  size_t width() const;

  // Writes a line above the bar.
  void Print(absl::string_view line);
  // Writes a line that `source` wrote; `color` (any number) distinguishes sources on a terminal.
  void PrintFrom(absl::string_view source, int color, absl::string_view line);
  // Replaces the bar; empty: none. Cut to the terminal's width. Does nothing without a terminal.
  void SetBar(absl::string_view text);

 private:
  void Write(absl::string_view text);

  const int fd_;
  const bool terminal_;
  std::string bar_;
};

}  // namespace lodestone::psctl
