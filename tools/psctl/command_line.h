// psctl's command line: the verbs (verb.h), the flags that all of them have, and help.
//
// Not thread-safe.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/psctl/client/client_security.h"
#include "tools/psctl/verbs/verb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace lodestone::psctl {

class CommandLine {
 public:
  // `version`: what --version prints.
  explicit CommandLine(const std::string& version);
  ~CommandLine();

  // All verbs and flags, as they are parsed: help and completion are made of it.
  const CLI::App& app() const { return *app_; }

  // Runs what the arguments say. Returns the exit code (exit_code.h).
  int Run(int argc, const char* const* argv);

 private:
  // Each says what is wrong with the arguments on standard error, and returns the exit code.
  int FailParse(const std::exception& error) const;
  int FailUnknownVerb(const std::string& name) const;
  // What is wrong with an argument that `command` does not know, with the one that it may mean.
  std::string UnknownArgument(const CLI::App& command, const std::string& argument) const;
  void AddGlobalFlags();
  void Add(const Verb& verb);

  std::unique_ptr<CLI::App> app_;
  std::vector<std::pair<CLI::App*, Verb::Run>> verbs_;
  std::string color_ = "auto";
  SecurityOptions security_;
};

}  // namespace lodestone::psctl
