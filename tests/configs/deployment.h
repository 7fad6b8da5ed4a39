// What the tests of configs/container, kubernetes and systemd share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "yaml-cpp/yaml.h"

namespace lodestone {

// The contents of a file of the project; the test fails if it is not there.
std::string ReadProjectFile(const std::string& path);

// The documents of a YAML file, or of YAML text.
std::vector<YAML::Node> LoadDocuments(const std::string& path);
std::vector<YAML::Node> ParseDocuments(const std::string& text);

// The flags of a ps or a worker, as they stand on its command line.
struct CommandLine {
  std::string config;             // Of --config.
  std::vector<std::string> sets;  // Of each --set.

  // The value that a field is set to last; empty if it is not.
  std::string ValueOf(const std::string& field) const;
};
// Reads "--config=FILE", "--config FILE", "--set=A=B" and "--set A=B"; the test fails at anything else. "$(NAME)" in
// them stands for its value in `variables`.
CommandLine ParseCommandLine(const std::vector<std::string>& arguments,
                             const std::map<std::string, std::string>& variables = {});

// The effective configuration of a process that is given the file at `path` and these flags: what --check would print.
absl::StatusOr<v1::Config> CheckedConfig(const std::string& path, const CommandLine& flags);

// Runs a command of the shell; its output, both streams. The exit code goes to `exit_code`.
std::string RunShell(const std::string& command, int* exit_code);
// Whether the shell finds the program.
bool HasProgram(const std::string& name);

// A sequence of strings.
std::vector<std::string> StringsOf(const YAML::Node& node);
// Whether `labels` has all that `selector` asks for, which is not nothing.
bool Selects(const YAML::Node& selector, const YAML::Node& labels);

}  // namespace lodestone
