// The command-line flags that ps and worker share: --config, --set, --check, --log-json, --version, --help.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "proto/config.pb.h"

namespace lodestone {

// Exit code for a wrong command line or configuration.
inline constexpr int kExitUsage = 2;
// Exit code of a run that came to its end, but not all of its samples were trained.
inline constexpr int kExitUntrained = 5;

// A flag with a value that only one of the binaries has.
struct StringFlag {
  std::string name;         // With dashes: "--address-file".
  std::string placeholder;  // What help shows for the value: "PATH".
  std::string help;         // One sentence.
  std::string* value;       // Where the value goes; untouched if the flag is not given. Must outlive ParseOptions.
};

// What differs between the binaries.
struct OptionsSpec {
  std::string program;            // The installed name: "lodestone-ps".
  std::string description;        // What the program does; one or two sentences.
  std::string examples;           // Command lines, one a line, for the end of --help.
  std::vector<StringFlag> flags;  // The binary's own flags.
  bool trains = false;            // The configuration has to say what is trained (ConfigUse::kTraining).
};

// What the shared flags say.
struct ProcessOptions {
  // The file of --config with every --set and --log-json applied, validated.
  v1::Config config;
  // The file itself, for messages.
  std::string config_path;
};

// Reads the command line. Returns the exit code if the process should end now: 0 after --help, --version and --check
// (which prints the effective configuration on standard output), kExitUsage after an error (printed on standard error).
// Otherwise returns nothing and fills `out`. Call it once, first thing in main.
std::optional<int> ParseOptions(int argc, const char* const* argv, const OptionsSpec& spec, ProcessOptions* out);

}  // namespace lodestone
