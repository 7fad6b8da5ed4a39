#include "tools/psctl/completion.h"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tools/psctl/completion_scripts.h"
#include "tools/psctl/text/exit_code.h"

namespace lodestone::psctl {
namespace {

// The words between braces in a type's name, as IsMember writes them.
std::vector<std::string> WordsIn(const std::string& type) {
  const size_t open = type.find('{'), close = type.find('}', open);
  if (open == std::string::npos || close == std::string::npos) return {};
  return absl::StrSplit(type.substr(open + 1, close - open - 1), ',');
}

CompletedValue ValueOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  CompletedValue value;
  value.words = WordsIn(type);
  if (!value.words.empty()) {
    value.kind = CompletedValue::Kind::kWord;
  } else if (absl::StartsWith(type, "FILE")) {
    value.kind = CompletedValue::Kind::kFile;
  } else if (absl::StartsWith(type, "DIR")) {
    value.kind = CompletedValue::Kind::kFolder;
  }
  return value;
}

// What a list of choices has room for.
std::string FirstSentence(const std::string& text) {
  return text.substr(0, std::min({text.find(": "), text.find(". "), text.find("; "), text.find(" (")}));
}

void AddFlags(const CLI::App& app, std::vector<CompletedFlag>* flags) {
  for (const CLI::Option* const option : app.get_options()) {
    if (!option->nonpositional() || option->get_group().empty()) continue;  // An empty group hides it.
    CompletedFlag flag;
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    const bool known = std::any_of(flags->begin(), flags->end(),
                                   [&](const auto& other) { return other.names.front() == flag.names.front(); });
    if (known) continue;
    flag.description = FirstSentence(option->get_description());
    flag.takes_value = option->get_items_expected_max() > 0;
    flag.value = ValueOf(*option);
    flags->push_back(std::move(flag));
  }
}

CompletedVerb VerbOf(const CLI::App& app) {
  CompletedVerb verb;
  verb.name = app.get_name();
  verb.description = FirstSentence(app.get_description());
  AddFlags(app, &verb.flags);
  for (const CLI::Option* const option : app.get_options()) {
    if (option->get_positional()) verb.arguments.push_back(ValueOf(*option));
  }
  return verb;
}

}  // namespace

std::vector<CompletedVerb> CompletedVerbsOf(const CLI::App& app) {
  std::vector<CompletedVerb> verbs = {VerbOf(app)};
  verbs.front().name.clear();
  for (const CLI::App* const command : app.get_subcommands([](const CLI::App*) { return true; })) {
    CompletedVerb verb = VerbOf(*command);
    for (const CompletedFlag& flag : verbs.front().flags) {
      // Help is each verb's own, and versions are asked for without a verb.
      if (flag.names.front() == "--version" || !command->get_fallthrough()) continue;
      const bool known = std::any_of(verb.flags.begin(), verb.flags.end(),
                                     [&](const auto& other) { return other.names.front() == flag.names.front(); });
      if (!known) verb.flags.push_back(flag);
    }
    verbs.push_back(std::move(verb));
  }
  return verbs;
}

std::vector<std::string> CompletionShells() { return {"bash", "zsh", "fish"}; }

std::string CompletionScript(const CLI::App& app, absl::string_view shell) {
  const std::vector<CompletedVerb> verbs = CompletedVerbsOf(app);
  if (shell == "zsh") return ZshCompletion(verbs);
  return shell == "fish" ? FishCompletion(verbs) : BashCompletion(verbs);
}

const Verb kCompletionVerb = {
    "completion", "Prints what makes a shell complete verbs, flags and files: eval \"$(psctl completion bash)\"",
    "  eval \"$(psctl completion bash)\"                        verbs, flags and files by the tab key\n",
    [](CLI::App* command) -> Verb::Run {
      const auto shell = std::make_shared<std::string>();
      command->add_option("SHELL", *shell, "For which shell")->required()->check(CLI::IsMember(CompletionShells()));
      return [command, shell] {
        std::fputs(CompletionScript(*command->get_parent(), *shell).c_str(), stdout);
        return kExitDone;
      };
    }};

}  // namespace lodestone::psctl
