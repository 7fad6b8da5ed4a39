// One verb of psctl: each is a constant of this type beside what it runs, and a line in command_line.cc's list. Help,
// completion and tests are derived from that list.
//
// Thread safety: plain constants.
#pragma once

#include <functional>

namespace CLI {
class App;
}  // namespace CLI

namespace lodestone::psctl {

struct Verb {
  // Runs the verb with the options that were parsed. Returns the exit code (exit_code.h).
  using Run = std::function<int()>;

  const char* name;
  const char* help;      // Lists show its first sentence.
  const char* examples;  // Lines of "  psctl NAME ...", each with what it does.
  // Declares the options of the verb on its command, and returns what runs with their values.
  Run (*declare)(CLI::App* command);
};

}  // namespace lodestone::psctl
