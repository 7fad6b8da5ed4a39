// tools/image says what is wrong before it builds anything.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/configs/deployment.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

// Runs it where no engine is there, or only `engine`, which always fails; what it says.
std::string Say(const std::string& arguments, int expected_exit_code, const std::string& engine = "") {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/bin");
  std::string setup = absl::StrCat("rm -rf ", folder, " && mkdir ", folder);
  for (const char* program : {"bash", "dirname", "sed", "mkdir", "mktemp", "rm"}) {
    absl::StrAppend(&setup, " && ln -s $(command -v ", program, ") ", folder);
  }
  if (!engine.empty()) absl::StrAppend(&setup, " && ln -s /bin/false ", folder, "/", engine);
  int exit_code = 0;
  const std::string output =
      RunShell(absl::StrCat(setup, " && PATH=", folder, " bash tools/image ", arguments), &exit_code);
  EXPECT_EQ(exit_code, expected_exit_code) << output;
  return output;
}

TEST(ImageArguments, HelpNamesEveryFlag) {
  const std::string help = Say("--help", 0);
  for (const char* flag : {"--tag", "--engine", "--base", "--debootstrap", "--host-built", "--binaries"}) {
    EXPECT_THAT(help, HasSubstr(absl::StrCat("#     ", flag)));
  }
}

TEST(ImageArguments, WithoutAnEngineItSaysWhichThereAre) {
  EXPECT_THAT(Say("", 1), HasSubstr("neither podman nor buildah nor docker is here"));
  EXPECT_THAT(Say("--engine buildah", 1), HasSubstr("buildah is not here"));
}

TEST(ImageArguments, ADockerWithoutItsEngineIsNamed) {
  EXPECT_THAT(Say("", 1, "docker"), HasSubstr("its engine does not answer"));
}

TEST(ImageArguments, AWrongCommandLineIsRefused) {
  EXPECT_THAT(Say("--fast", 2), HasSubstr("there is no '--fast'"));
  EXPECT_THAT(Say("--tag", 2), HasSubstr("--tag needs a value"));
  EXPECT_THAT(Say("--engine lxc", 2), HasSubstr("not 'lxc'"));
  EXPECT_THAT(Say("--base debian --debootstrap", 2), HasSubstr("exclude each other"));
  EXPECT_THAT(Say("--host-built --binaries x", 2), HasSubstr("exclude each other"));
}

TEST(ImageArguments, AProgramThatIsMissingIsNamed) {
  EXPECT_THAT(Say("--binaries /nowhere", 1, "podman"), HasSubstr("/nowhere/ps is not there"));
}

TEST(ImageArguments, TheEngineGetsTheFlagsAndAContextOfTheProgramsAndConfigurations) {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/built");
  int exit_code = 0;
  // An engine that says what it is given, in a place where everything else is there.
  const std::string output = RunShell(
      absl::StrCat("mkdir -p ", folder, "/engine && for p in ps worker psctl; do cp /bin/true ", folder,
                   "/$p; done && ",
                   "printf '#!/bin/sh\\necho \"$@\"; for last; do :; done; cd \"$last\" && find . -type f\\n' > ",
                   folder, "/engine/podman && chmod +x ", folder, "/engine/podman && PATH=", folder,
                   "/engine:$PATH bash tools/image --tag a/b:1 --base c --binaries ", folder, " -- --no-cache"),
      &exit_code);
  EXPECT_EQ(exit_code, 0) << output;
  EXPECT_THAT(output, HasSubstr("build -t a/b:1 -f "));
  EXPECT_THAT(output, HasSubstr("--format docker --build-arg BASE=c --target host --no-cache "));
  for (const char* file : {"./bin/ps\n", "./bin/worker\n", "./bin/psctl\n", "./configs/local.yaml\n"}) {
    EXPECT_THAT(output, HasSubstr(file));
  }
}

}  // namespace
}  // namespace lodestone
