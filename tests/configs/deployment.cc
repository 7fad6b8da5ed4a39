#include "tests/configs/deployment.h"

#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/config/config.h"
#include "gtest/gtest.h"

namespace lodestone {

std::string ReadProjectFile(const std::string& path) {
  std::ifstream file(path);  // Tests run in the project's folder.
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<YAML::Node> LoadDocuments(const std::string& path) { return ParseDocuments(ReadProjectFile(path)); }

std::vector<YAML::Node> ParseDocuments(const std::string& text) {
  try {
    return YAML::LoadAll(text);
  } catch (const YAML::Exception& error) {
    ADD_FAILURE() << error.what() << "\n" << text;
    return {};
  }
}

std::string CommandLine::ValueOf(const std::string& field) const {
  std::string value;
  for (const std::string& set : sets) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(set, absl::MaxSplits('=', 1));
    if (parts.first == field) value = parts.second;
  }
  return value;
}

CommandLine ParseCommandLine(const std::vector<std::string>& arguments,
                             const std::map<std::string, std::string>& variables) {
  std::vector<std::pair<std::string, std::string>> replacements;
  for (const auto& [name, value] : variables) replacements.emplace_back(absl::StrCat("$(", name, ")"), value);
  CommandLine line;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::pair<std::string, std::string> flag = absl::StrSplit(arguments[i], absl::MaxSplits('=', 1));
    if (!absl::StrContains(arguments[i], "=") && i + 1 < arguments.size()) flag.second = arguments[++i];
    const std::string value = absl::StrReplaceAll(flag.second, replacements);
    EXPECT_FALSE(absl::StrContains(value, "$(")) << arguments[i] << ": names no variable of its container";
    if (flag.first == "--config") {
      line.config = value;
    } else if (flag.first == "--set") {
      line.sets.push_back(value);
    } else {
      ADD_FAILURE() << "the test does not know " << arguments[i];
    }
  }
  return line;
}

absl::StatusOr<v1::Config> CheckedConfig(const std::string& path, const CommandLine& flags) {
  return LoadConfig(path, flags.sets);
}

std::string RunShell(const std::string& command, int* exit_code) {
  std::string output;
  FILE* const pipe = popen(absl::StrCat("{ ", command, "; } 2>&1").c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "cannot run a shell";
    return output;
  }
  char buffer[4096];
  for (size_t bytes; (bytes = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, bytes);
  const int status = pclose(pipe);
  *exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

bool HasProgram(const std::string& name) {
  int exit_code = 0;
  RunShell(absl::StrCat("command -v ", name), &exit_code);
  return exit_code == 0;
}

std::vector<std::string> StringsOf(const YAML::Node& node) {
  std::vector<std::string> strings;
  for (const YAML::Node& each : node) strings.push_back(each.as<std::string>());
  return strings;
}

bool Selects(const YAML::Node& selector, const YAML::Node& labels) {
  if (!selector.IsMap() || selector.size() == 0) return false;
  for (const auto& entry : selector) {
    const YAML::Node label = labels[entry.first.as<std::string>()];
    if (!label || label.as<std::string>() != entry.second.as<std::string>()) return false;
  }
  return true;
}

}  // namespace lodestone
