// `psctl completion`: shell completion of psctl's verbs, flags and values, derived from the parsed command line.
//
// Where a value is a file, its type is called FILE, or FILE.something; a folder's DIR. Values that are one of some
// words are checked by CLI::IsMember.
//
// Thread safety: pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/psctl/verbs/verb.h"

namespace CLI {
class App;
}  // namespace CLI

namespace lodestone::psctl {

// The values that a flag or an argument takes.
struct CompletedValue {
  enum class Kind { kAnything, kFile, kFolder, kWord };
  Kind kind = Kind::kAnything;
  std::vector<std::string> words;  // Of kWord.
};

struct CompletedFlag {
  std::vector<std::string> names;  // "--json", "-h".
  std::string description;         // Its first sentence.
  bool takes_value = false;
  CompletedValue value;
};

struct CompletedVerb {
  std::string name;  // Empty: before any verb.
  std::string description;
  std::vector<CompletedFlag> flags;
  std::vector<CompletedValue> arguments;  // In order.
};

// First what stands before the verb; then each verb, also with the flags that may stand after it all the same.
std::vector<CompletedVerb> CompletedVerbsOf(const CLI::App& app);

// The shells there are scripts for.
std::vector<std::string> CompletionShells();

// The script for one of them. REQUIRES: it is one.
std::string CompletionScript(const CLI::App& app, absl::string_view shell);

extern const Verb kCompletionVerb;

}  // namespace lodestone::psctl
