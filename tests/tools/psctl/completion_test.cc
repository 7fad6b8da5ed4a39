#include "tools/psctl/completion.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/psctl/command_line.h"

namespace lodestone::psctl {
namespace {

namespace fs = std::filesystem;

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;
using testing::UnorderedElementsAre;
using testing::UnorderedElementsAreArray;

std::string ScriptFor(const std::string& shell) { return CompletionScript(CommandLine("psctl").app(), shell); }

const CompletedVerb& Find(const std::vector<CompletedVerb>& verbs, const std::string& name) {
  const auto found = std::find_if(verbs.begin(), verbs.end(), [&](const auto& verb) { return verb.name == name; });
  EXPECT_NE(found, verbs.end()) << name;
  return *found;
}

const CompletedFlag& Flag(const CompletedVerb& verb, const std::string& name) {
  const auto found =
      std::find_if(verb.flags.begin(), verb.flags.end(), [&](const auto& flag) { return flag.names.front() == name; });
  EXPECT_NE(found, verb.flags.end()) << verb.name << " " << name;
  return *found;
}

TEST(CompletedVerbsOf, HasWhatTheCommandLineHas) {
  const CommandLine line("psctl");
  const std::vector<CompletedVerb> verbs = CompletedVerbsOf(line.app());
  EXPECT_EQ(verbs.front().name, "");
  EXPECT_EQ(Flag(verbs.front(), "--version").takes_value, false);
  const CompletedVerb& events = Find(verbs, "events");
  EXPECT_FALSE(Flag(events, "--json").takes_value);
  EXPECT_THAT(Flag(events, "--follow").names, ElementsAre("--follow", "-f"));
  EXPECT_TRUE(Flag(events, "--address").takes_value);
  EXPECT_EQ(Flag(events, "--address").value.kind, CompletedValue::Kind::kAnything);
  EXPECT_THAT(Flag(events, "--color").value.words, ElementsAre("auto", "always", "never"));
  EXPECT_EQ(Flag(Find(verbs, "local"), "--summary").value.kind, CompletedValue::Kind::kFile);
  EXPECT_EQ(Flag(Find(verbs, "replay"), "--from").value.kind, CompletedValue::Kind::kFolder);
  ASSERT_EQ(Find(verbs, "import").arguments.size(), 1u);
  EXPECT_EQ(Find(verbs, "import").arguments[0].kind, CompletedValue::Kind::kFile);
  EXPECT_THAT(Find(verbs, "completion").arguments[0].words, ElementsAre("bash", "zsh", "fish"));
}

// A folder with a script in it and things to complete.
class ShellTest : public testing::Test {
 protected:
  ShellTest() : dir_(fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name()) {
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "a folder");
    std::ofstream(dir_ / "a file.yaml") << "x";
    std::ofstream(dir_ / "other.yaml") << "x";
  }
  ~ShellTest() override { fs::remove_all(dir_); }

  static bool Has(const std::string& shell) {
    return std::system(absl::StrCat("command -v ", shell, " > /dev/null 2>&1").c_str()) == 0;
  }
  // The lines that `script` prints, in the folder.
  std::vector<std::string> Run(const std::string& shell, const std::string& script) {
    std::ofstream(dir_ / "run") << script;
    const std::string command = absl::StrCat("cd '", dir_.string(), "' && ", shell, " run > out 2> err");
    EXPECT_EQ(std::system(command.c_str()), 0) << Content("err");
    EXPECT_EQ(Content("err"), "");
    return absl::StrSplit(Content("out"), '\n', absl::SkipEmpty());
  }
  std::string Content(const std::string& file) const {
    std::stringstream text;
    text << std::ifstream(dir_ / file).rdbuf();
    return text.str();
  }

  const fs::path dir_;
};

class BashTest : public ShellTest {
 protected:
  // What bash would offer after these words; the last one is being typed.
  std::vector<std::string> Offered(const std::vector<std::string>& words) {
    std::string script = ScriptFor("bash");
    absl::StrAppend(&script, "COMP_WORDS=(psctl");
    for (const std::string& word : words) absl::StrAppend(&script, " '", word, "'");
    absl::StrAppend(&script, ")\nCOMP_CWORD=", words.size(), "\n_psctl\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n");
    return Run("bash", script);
  }
};

TEST_F(BashTest, VerbsComeFirst) {
  std::vector<std::string> verbs;
  for (const CompletedVerb& verb : CompletedVerbsOf(CommandLine("psctl").app())) {
    if (!verb.name.empty()) verbs.push_back(verb.name);
  }
  EXPECT_THAT(verbs, IsSupersetOf({"status", "completion"}));
  EXPECT_THAT(Offered({""}), UnorderedElementsAreArray(verbs));
  EXPECT_THAT(Offered({"wo"}), ElementsAre("workers"));
  EXPECT_THAT(Offered({"--color", "never", "wo"}), ElementsAre("workers"));
  EXPECT_THAT(Offered({"xyz"}), IsEmpty());
}

TEST_F(BashTest, FlagsAreTheVerbsOwnAndThoseOfAll) {
  EXPECT_THAT(Offered({"events", "--"}), UnorderedElementsAre("--help", "--address", "--follow", "--last", "--json",
                                                              "--timeout", "--color", "--config", "--set"));
  EXPECT_THAT(Offered({"events", "--fo"}), ElementsAre("--follow"));
  EXPECT_THAT(Offered({"events", "-"}), Contains("-f"));
  EXPECT_THAT(Offered({"tables", "--fo"}), IsEmpty());
  EXPECT_THAT(Offered({"-"}), Contains("--version"));
}

TEST_F(BashTest, ValuesAreWordsOrFilesOrNothing) {
  EXPECT_THAT(Offered({"status", "--color", "a"}), UnorderedElementsAre("auto", "always"));
  EXPECT_THAT(Offered({"status", "--color", "=", "al"}), ElementsAre("always")) << "as bash splits --color=al";
  EXPECT_THAT(Offered({"status", "--color", "="}), UnorderedElementsAre("auto", "always", "never"));
  EXPECT_THAT(Offered({"local", "other.yaml", "--summary", "a"}), UnorderedElementsAre("a file.yaml", "a folder"));
  EXPECT_THAT(Offered({"replay", "--from", "a"}), ElementsAre("a folder"));
  EXPECT_THAT(Offered({"status", "--address", ""}), IsEmpty());
  EXPECT_THAT(Offered({"status", "--address", "ps0", ":", "7000", "--js"}), ElementsAre("--json"));
}

TEST_F(BashTest, ArgumentsAreFilesWhereTheyAre) {
  EXPECT_THAT(Offered({"local", "oth"}), ElementsAre("other.yaml"));
  EXPECT_THAT(Offered({"check", "--set", "a.b=1", "oth"}), ElementsAre("other.yaml"));
  EXPECT_THAT(Offered({"verify", "a"}), ElementsAre("a folder"));
  EXPECT_THAT(Offered({"local", "other.yaml", "oth"}), IsEmpty()) << "there is only one";
  EXPECT_THAT(Offered({"rollback", ""}), IsEmpty()) << "a table's name is not known here";
  EXPECT_THAT(Offered({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(Offered({"events", "--follow", "--json", ""}), IsEmpty());
}

TEST_F(ShellTest, EvalIsAllThatBashNeeds) {
  std::ofstream(dir_ / "script") << ScriptFor("bash");
  EXPECT_THAT(Run("bash", "set -eu\neval \"$(cat script)\"\ncomplete -p psctl\n"),
              ElementsAre("complete -F _psctl psctl"));
}

TEST_F(ShellTest, FishOffersTheSame) {
  if (!Has("fish")) GTEST_SKIP() << "there is no fish here";
  std::ofstream(dir_ / "script.fish") << ScriptFor("fish");
  const auto offered = [this](const std::string& line) {
    return Run("HOME=. XDG_CONFIG_HOME=. XDG_DATA_HOME=. fish --no-config",
               absl::StrCat("source script.fish\ncomplete -C '", line, "'\n"));
  };
  EXPECT_THAT(offered("psctl wo"), ElementsAre("workers\tShows the workers"));
  EXPECT_THAT(offered("psctl events --fo"), ElementsAre("--follow\tGoes on with what happens, until Ctrl-C"));
  EXPECT_THAT(offered("psctl status --color al"), ElementsAre("always\tColours"));
  EXPECT_THAT(offered("psctl completion f"), ElementsAre("fish"));
  EXPECT_THAT(offered("psctl local oth"), ElementsAre("other.yaml"));
}

TEST_F(ShellTest, ZshTakesTheScript) {
  if (!Has("zsh")) GTEST_SKIP() << "there is no zsh here";
  std::ofstream(dir_ / "script.zsh") << ScriptFor("zsh");
  EXPECT_THAT(Run("HOME=. zsh -f",
                  "autoload -U compinit\ncompinit -u -D\neval \"$(cat script.zsh)\"\n"
                  "print -r -- ${_comps[psctl]}\n"),
              ElementsAre("_psctl"));
}

}  // namespace
}  // namespace lodestone::psctl
