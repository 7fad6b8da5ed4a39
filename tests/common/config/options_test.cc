#include "common/config/options.h"

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "common/config/config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

// What a command line led to.
struct Outcome {
  std::optional<int> exit_code;
  ProcessOptions options;
  std::string out;
  std::string err;
  std::string address_file = "none";
};

std::string WriteConfig(const std::string& text) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/options.yaml";
  std::ofstream(path) << text;
  return path;
}

Outcome RunWith(const std::vector<std::string>& arguments) {
  Outcome outcome;
  std::vector<const char*> argv = {"ps"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  const OptionsSpec spec{"ps",
                         "A parameter server process.",
                         "  ps --config configs/local.yaml",
                         {{"--address-file", "PATH", "Where to write the address.", &outcome.address_file}}};
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  outcome.exit_code = ParseOptions(static_cast<int>(argv.size()), argv.data(), spec, &outcome.options);
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(Options, ReadTheConfigurationWithOverrides) {
  const std::string path = WriteConfig("train: {epochs: 2}\n");
  const Outcome outcome = RunWith({"--config", path, "--set", "train.batch_size=7", "--set=train.epochs=3",
                                   "--log-json", "--address-file", "somewhere"});
  EXPECT_FALSE(outcome.exit_code.has_value()) << outcome.err;
  EXPECT_EQ(outcome.options.config_path, path);
  EXPECT_EQ(outcome.options.config.train().batch_size(), 7u);
  EXPECT_EQ(outcome.options.config.train().epochs(), 3);
  EXPECT_TRUE(outcome.options.config.log().json());
  EXPECT_EQ(outcome.address_file, "somewhere");
  EXPECT_EQ(outcome.out + outcome.err, "");
}

TEST(Options, PassOverridesOnAsTheyAreWritten) {
  const std::string path = WriteConfig("");
  const Outcome outcome =
      RunWith({"--config", path, "--set", "data.train=[a.csv, b.csv]", "--set", "data.csv.delimiter=,", "--set",
               "model.optimizer={adam: {beta1: 0.8}}", "--set", "data.csv.label=-1"});
  EXPECT_FALSE(outcome.exit_code.has_value()) << outcome.err;
  EXPECT_EQ(outcome.options.config.data().train_size(), 2);
  EXPECT_EQ(outcome.options.config.data().csv().delimiter(), ",");
  EXPECT_EQ(outcome.options.config.model().optimizer().adam().beta1(), 0.8f);
  EXPECT_EQ(outcome.options.config.data().csv().label(), "-1");
  EXPECT_EQ(outcome.address_file, "none");
}

TEST(Options, CheckPrintsTheEffectiveConfigurationAndEnds) {
  const Outcome outcome =
      RunWith({"--config", WriteConfig("train: {epochs: 2}\n"), "--check", "--set", "log.level=warn"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("epochs: 2\n"));
  EXPECT_THAT(outcome.out, HasSubstr("level: warn\n"));
  EXPECT_THAT(outcome.out, HasSubstr("shards: 64  # default\n"));
  EXPECT_TRUE(ParseConfig(outcome.out, "printed").ok());
}

TEST(Options, EndWithTwoOnABrokenConfiguration) {
  const std::string path = WriteConfig("train:\n  epoch: 2\n  shuffle: x\n");
  for (const bool check : {false, true}) {
    const Outcome outcome = RunWith({"--config", path, check ? "--check" : "--log-json"});
    EXPECT_EQ(outcome.exit_code, kExitUsage);
    EXPECT_EQ(outcome.err, "ps: " + path + ":2:3: train.epoch: unknown field (did you mean `epochs`?)\nps: " + path +
                               ":3:12: train.shuffle: expected true or false, got `x`\n");
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(Options, EndWithTwoOnAWrongCommandLine) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"--config"},
                                             {"--config", "/no/such/file"},
                                             {"--confg", "x"},
                                             {"--set", "a=b"},
                                             {"stray"},
                                             {"--config", WriteConfig(""), "--address-file"},
                                             {"--config", WriteConfig(""), "--set"},
                                             {"--config", WriteConfig(""), "stray"}}) {
    const Outcome outcome = RunWith(arguments);
    EXPECT_EQ(outcome.exit_code, kExitUsage) << testing::PrintToString(arguments);
    EXPECT_THAT(outcome.err, HasSubstr("ps: "));
    EXPECT_EQ(outcome.out, "");
  }
}

TEST(Options, TellTheVersionAndThatOnlyReleaseBuildsKnowTheCommit) {
  const Outcome outcome = RunWith({"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, "ps 0.1.0 (commit unknown)\n");
}

TEST(Options, TeachByHelp) {
  const Outcome outcome = RunWith({"--help"});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const char* const part :
       {"A parameter server process.", "--config FILE", "--set PATH=VALUE", "--check", "--log-json", "--version",
        "--address-file PATH", "--set train.epochs=3", "ps --config configs/local.yaml"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
}

}  // namespace
}  // namespace lodestone
