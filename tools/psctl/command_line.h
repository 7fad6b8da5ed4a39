// psctl's command line: its verbs, their flags, and what each runs.
//
// Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/psctl/client/client_security.h"

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

  // Runs what the arguments say. Returns the exit code (outcome.h).
  int Run(int argc, const char* const* argv);

 private:
  using Runner = std::function<int()>;

  int FailUnknownVerb(const std::string& name) const;
  void AddGlobalFlags();
  // A verb; its flags follow.
  CLI::App* AddVerb(const std::string& name, const std::string& description, Runner run);
  // What runs and watches.
  void AddLocal();
  void AddStatus();
  void AddTop();
  void AddListings();
  void AddEvents();
  void AddHealth();
  // What changes something, or checks it.
  void AddCheckpoint();
  void AddRollback();
  void AddVerify();
  void AddReplay();
  void AddExport();
  void AddImport();
  void AddCheck();
  void AddCompletion();

  std::unique_ptr<CLI::App> app_;
  std::vector<std::pair<CLI::App*, Runner>> verbs_;
  std::string color_ = "auto";
  SecurityOptions security_;
};

}  // namespace lodestone::psctl
