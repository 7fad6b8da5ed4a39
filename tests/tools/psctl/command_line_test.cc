#include "tools/psctl/command_line.h"

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/psctl/client/fake_admin.h"
#include "tests/tools/psctl/verbs/psctl_call.h"

namespace lodestone::psctl {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

std::set<std::string> VerbsWith(const std::string& flag) {
  const CommandLine line("psctl");
  std::set<std::string> verbs;
  for (const CLI::App* const verb : line.app().get_subcommands([](const CLI::App*) { return true; })) {
    for (const CLI::Option* const option : verb->get_options()) {
      if (option->check_lname(flag)) verbs.insert(verb->get_name());
    }
  }
  return verbs;
}

TEST(CommandLine, EveryVerbButTheOneForShellsPrintsJsonToo) {
  std::set<std::string> all = VerbsWith("help");
  EXPECT_EQ(all.erase("completion"), 1u);
  EXPECT_GT(all.size(), 10u);
  EXPECT_EQ(VerbsWith("json"), all);
}

TEST(CommandLine, EveryVerbThatAsksAPsHasAnAddressAndATimeout) {
  std::set<std::string> asks = VerbsWith("timeout");
  for (const char* verb : {"predict", "evaluate", "serve"}) EXPECT_EQ(asks.erase(verb), 1u) << "their MODEL may be one";
  EXPECT_EQ(VerbsWith("address"), asks);
  for (const char* verb : {"status", "events", "checkpoint"}) EXPECT_EQ(VerbsWith("address").count(verb), 1u) << verb;
  for (const char* verb : {"local", "check"}) EXPECT_EQ(VerbsWith("address").count(verb), 0u) << verb;
}

TEST(CommandLine, HelpHasExamplesAndExitCodes) {
  const PsctlCall help({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  for (const char* text : {"psctl local configs/local.yaml", "psctl events --follow", "Exit codes: 0 done;",
                           "3 no ps can be reached there"}) {
    EXPECT_THAT(help.output, HasSubstr(text));
  }
  const PsctlCall verb({"events", "--help"});
  EXPECT_EQ(verb.exit_code, 0);
  for (const char* text : {"--follow", "HOST:PORT", "127.0.0.1:7000", "TIME=5 s"})
    EXPECT_THAT(verb.output, HasSubstr(text));
  EXPECT_EQ(PsctlCall({"--version"}).output, "psctl 1.2.3\n");
}

TEST(CommandLine, AVerbsHelpHasItsOwnExamplesOnly) {
  const CommandLine line("psctl");
  for (const CLI::App* const verb : line.app().get_subcommands([](const CLI::App*) { return true; })) {
    const std::string footer = verb->get_footer();
    size_t examples = 0;
    for (size_t at = footer.find("psctl "); at != std::string::npos; at = footer.find("psctl ", at + 1)) {
      EXPECT_EQ(footer.compare(at + 6, verb->get_name().size() + 1, verb->get_name() + " "), 0) << footer;
      ++examples;
    }
    EXPECT_GE(examples, 1u) << verb->get_name();
    EXPECT_THAT(footer, HasSubstr("Exit codes: 0 done;"));
  }
}

TEST(CommandLine, AWrongOneIsAUsageErrorWithAReason) {
  const struct {
    std::vector<std::string> arguments;
    const char* reason;
  } wrong[] = {
      {{}, "psctl runs, watches and checks"},
      {{"frobnicate"}, "frobnicate"},
      {{"--verson"}, "psctl: unknown option --verson (did you mean --version?)"},
      {{"status", "--adress", "x:1"}, "psctl status: unknown option --adress (did you mean --address?)"},
      {{"status", "x:1"}, "psctl status: unexpected argument x:1 (did you mean --address x:1?)"},
      {{"top", "--count", "x"}, "psctl top: --count: expected a whole number, 1 or more, got `x`"},
      {{"events", "--last", "-3"}, "psctl events: --last: expected a whole number, 1 or more, got `-3`"},
      {{"status", "--address", "x"}, "psctl status: --address: "},
      {{"tables", "--address", "x"}, "psctl tables: --address: "},
      {{"events", "--address", "x"}, "psctl events: --address: "},
      {{"top", "--address", "x"}, "psctl top: --address: "},
      {{"status", "--timeout", "soon"}, "`soon` is no time"},
      {{"status", "--timeout", "0"}, "`0` is not between 1ms and 24h"},
      {{"status", "--color", "red"}, "red"},
      {{"status", "--set", "security.token=/no/token"}, "psctl: security.token: /no/token: open"},
      {{"status", "--set", "security.tocken=/no/token"}, "did you mean `token`?"},
      {{"status", "--config", "/no/cluster.yaml"}, "/no/cluster.yaml"},
      {{"completion", "tcsh"}, "tcsh"},
      {{"verify"}, "name a checkpoint's folder (DIR), or --live"},
      {{"verify", "--address", "x:1"}, "--live"},
  };
  for (const auto& [arguments, reason] : wrong) {
    const PsctlCall call(arguments);
    EXPECT_EQ(call.exit_code, 2) << reason;
    EXPECT_THAT(call.errors + call.output, HasSubstr(reason));
  }
}

TEST(CommandLine, ATimeoutEndsAVerbByItself) {
  FakeAdmin admin(0);
  admin.stalls = true;
  const PsctlCall call({"status", "--address", admin.address, "--timeout", "250ms"});
  EXPECT_EQ(call.exit_code, 4);
  EXPECT_EQ(call.errors, "psctl status: no ps answers at " + admin.address + " within 250 ms (--timeout)\n");
}

class CommandLineClusterTest : public TwoServersTest {};

TEST_F(CommandLineClusterTest, StatusIsTextOrJson) {
  one_.status.mutable_server()->set_pushes(1234);
  const PsctlCall text({"status", "--address", one_.address, "--timeout", "60s"});
  EXPECT_EQ(text.exit_code, 0) << text.errors;
  EXPECT_THAT(text.output, StartsWith("ps 1 at " + one_.address));
  EXPECT_THAT(text.output, HasSubstr("pushes     1,234 ("));
  const PsctlCall json({"status", "--address", one_.address, "--timeout", "60s", "--json"});
  EXPECT_EQ(json.exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(json.output)["server"]["pushes"], 1234);
}

TEST_F(CommandLineClusterTest, ColoursAreAskedForBeforeOrAfterTheVerb) {
  const std::vector<std::string> status = {"status", "--address", one_.address, "--timeout", "60s"};
  EXPECT_THAT(PsctlCall(status).output, Not(HasSubstr("\x1b")));
  std::vector<std::string> after = status, before = {"--color", "always"};
  after.insert(after.end(), {"--color", "always"});
  before.insert(before.end(), status.begin(), status.end());
  EXPECT_THAT(PsctlCall(after).output, HasSubstr("\x1b[1mps 1 at "));
  EXPECT_THAT(PsctlCall(before).output, HasSubstr("\x1b[1mps 1 at "));
  after.back() = "never";
  EXPECT_THAT(PsctlCall(after).output, Not(HasSubstr("\x1b")));
}

TEST_F(CommandLineClusterTest, TopPrintsSoManyFramesWhereThereIsNoTerminal) {
  zero_.SetEvents(5, {"joined"});
  const PsctlCall call({"top", "--address", one_.address, "--timeout", "60s", "--count", "2"});
  EXPECT_EQ(call.exit_code, 0) << call.errors;
  EXPECT_THAT(call.output, StartsWith("cluster test  2 of 2 servers, 0 workers  "));
  EXPECT_THAT(call.output, HasSubstr("\n\ncluster test  2 of 2 servers"));
  EXPECT_THAT(call.output, HasSubstr(one_.address));
  EXPECT_THAT(call.output, Not(HasSubstr("\x1b")));
}

TEST_F(CommandLineClusterTest, TopAsJsonIsALineForEachFrameWithTheEventsSinceTheLast) {
  zero_.SetEvents(5, {"joined", "died"});
  const PsctlCall call({"top", "--address", one_.address, "--timeout", "60s", "--count", "2", "--json"});
  EXPECT_EQ(call.exit_code, 0) << call.errors;
  const size_t end = call.output.find('\n');
  const nlohmann::json first = nlohmann::json::parse(call.output.substr(0, end));
  const nlohmann::json second = nlohmann::json::parse(call.output.substr(end + 1));
  EXPECT_EQ(first["cluster"]["name"], "test");
  EXPECT_EQ(first["servers"].size(), 2u);
  EXPECT_EQ(first["events"].size(), 2u);
  EXPECT_EQ(first["events"][1]["kind"], "died");
  EXPECT_THAT(second["events"], IsEmpty());
  EXPECT_GT(second["time_ms"].get<int64_t>(), first["time_ms"].get<int64_t>());
}

TEST(Check, PrintsTheConfigurationAsYamlOrJson) {
  const std::string path = testing::TempDir() + "/check.yaml";
  std::ofstream(path) << "cluster: {servers: 3}\nmodel: {type: linear}\ndata: {generated: {}}\n";
  const PsctlCall yaml({"check", path});
  EXPECT_EQ(yaml.exit_code, 0) << yaml.errors;
  EXPECT_THAT(yaml.output, HasSubstr("servers: 3"));
  const PsctlCall json({"check", path, "--json", "--set", "cluster.workers=7"});
  EXPECT_EQ(json.exit_code, 0) << json.errors;
  EXPECT_EQ(nlohmann::json::parse(json.output)["cluster"]["servers"], 3);
  EXPECT_EQ(nlohmann::json::parse(json.output)["cluster"]["workers"], 7);
  EXPECT_EQ(PsctlCall({"check", path, "--set", "cluster.servers=0"}).exit_code, 2);
}

}  // namespace
}  // namespace lodestone::psctl
