// tools/image says what is wrong before it builds anything.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/configs/deployment.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using testing::Not;

// Runs it where no engine is there, or only `engine`, which always fails; what it says.
std::string Say(const std::string& arguments, int expected_exit_code, const std::string& engine = "",
                const std::string& environment = "") {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/bin");
  std::string setup = absl::StrCat("rm -rf ", folder, " && mkdir ", folder);
  for (const char* program : {"bash", "dirname", "sed", "mkdir", "mktemp", "rm"}) {
    absl::StrAppend(&setup, " && ln -s $(command -v ", program, ") ", folder);
  }
  if (!engine.empty()) absl::StrAppend(&setup, " && ln -s /bin/false ", folder, "/", engine);
  int exit_code = 0;
  const std::string output =
      RunShell(absl::StrCat(setup, " && ", environment, " PATH=", folder, " bash tools/image ", arguments), &exit_code);
  EXPECT_EQ(exit_code, expected_exit_code) << output;
  return output;
}

TEST(ImageArguments, HelpNamesEveryFlag) {
  const std::string help = Say("--help", 0);
  for (const char* flag :
       {"--tag", "--engine", "--base", "--debootstrap", "--host-built", "--binaries", "--cuda", "--toolkit"}) {
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
  EXPECT_THAT(Say("--toolkit x", 2), HasSubstr("--toolkit needs --cuda"));
  EXPECT_THAT(Say("--cuda --toolkit x --host-built", 2), HasSubstr("--toolkit is for building in the image"));
  EXPECT_THAT(Say("--cuda", 2), HasSubstr("--cuda needs --toolkit IMAGE, or --host-built or --binaries"));
}

TEST(ImageArguments, AProgramThatIsMissingIsNamed) {
  EXPECT_THAT(Say("--binaries /nowhere", 1, "podman"), HasSubstr("/nowhere/lodestone-ps is not there"));
}

TEST(ImageArguments, AToolkitThatIsMissingIsNamedBeforeAnythingIsBuilt) {
  EXPECT_THAT(Say("--cuda --host-built", 1, "podman", "LODESTONE_CUDA=/nowhere"),
              HasSubstr("there is no CUDA toolkit in /nowhere; LODESTONE_CUDA=DIR says where one is"));
}

// A folder in which everything is there that an image is made of: programs, the worker of which was compiled with CUDA
// `release`; a toolkit 13 with its links; and an engine that says what it is given, and what is in the context.
std::string Parts(const std::string& release) {
  const std::string folder = absl::StrCat(std::getenv("TEST_TMPDIR"), "/parts"), lib = folder + "/cuda/lib64/";
  int exit_code = 0;
  const std::string output = RunShell(
      absl::StrCat(
          "rm -rf ", folder, " && mkdir -p ", folder, "/engine ", lib, " ", folder, "/cuda/include",
          " && for p in lodestone-ps lodestone-worker psctl; do cp /bin/true ", folder, "/$p; done", " && printf '",
          release, "' >> ", folder, "/lodestone-worker && echo '#define CUBLAS_VER_MAJOR 13' > ", folder,
          "/cuda/include/cublas_api.h && for l in cublas cublasLt; do echo > ", lib,
          "lib$l.so.13.1.0 && ln -s lib$l.so.13.1.0 ", lib, "lib$l.so.13 && ln -s lib$l.so.13 ", lib,
          "lib$l.so; done && printf '#!/bin/sh\necho \"$@\"; for last; do :; done; cd \"$last\" && ",
          "find . -type f; find . -type l\n' > ", folder, "/engine/podman && chmod +x ", folder, "/engine/podman"),
      &exit_code);
  EXPECT_EQ(exit_code, 0) << output;
  return folder;
}
std::string Make(const std::string& parts, const std::string& arguments, int expected_exit_code = 0) {
  int exit_code = 0;
  // A `strip` that leaves what was added to the worker.
  const std::string output =
      RunShell(absl::StrCat("ln -sf /bin/true ", parts, "/engine/strip && LODESTONE_CUDA=", parts, "/cuda PATH=", parts,
                            "/engine:$PATH bash tools/image ", arguments, " --binaries ", parts, " -- --no-cache"),
               &exit_code);
  EXPECT_EQ(exit_code, expected_exit_code) << output;
  return output;
}

TEST(ImageArguments, TheEngineGetsTheFlagsAndAContextOfTheProgramsAndConfigurations) {
  const std::string output = Make(Parts(""), "--tag a/b:1 --base c");
  EXPECT_THAT(output, HasSubstr("build -t a/b:1 -f "));
  EXPECT_THAT(
      output,
      HasSubstr("--format docker --build-arg BASE=c --build-arg VARIANT=cpu --build-arg PROGRAMS=host --no-cache "));
  for (const char* file :
       {"./out/bin/lodestone-ps\n", "./out/bin/lodestone-worker\n", "./out/bin/psctl\n", "./configs/local.yaml\n"}) {
    EXPECT_THAT(output, HasSubstr(file));
  }
  EXPECT_THAT(output, Not(HasSubstr("cublas")));
}

TEST(ImageArguments, TheCudaVariantHasTheToolkitsCublasOnceAndUnderTheNamesThatTheLoaderAsksFor) {
  const std::string output = Make(Parts("Cuda compilation tools, release 13.0, V13.0.88"), "--cuda");
  EXPECT_THAT(output, HasSubstr("build -t lodestone-cuda -f "));
  EXPECT_THAT(output, HasSubstr("--build-arg VARIANT=cuda --build-arg PROGRAMS=host --no-cache "));
  EXPECT_THAT(output, HasSubstr("./out/lib/libcublas.so.13\n"));
  EXPECT_THAT(output, HasSubstr("./out/lib/libcublasLt.so.13\n"));
  EXPECT_THAT(output, Not(HasSubstr("libcublas.so.13.1.0")));
  EXPECT_THAT(output, Not(HasSubstr("libcublas.so\n")));
}

TEST(ImageArguments, TheCudaVariantTakesNoWorkerWithoutCudaOrWithAnother) {
  EXPECT_THAT(Make(Parts(""), "--cuda", 1), HasSubstr("the worker was built without CUDA"));
  EXPECT_THAT(Make(Parts("Cuda compilation tools, release 12.4, V12.4.1"), "--cuda", 1),
              HasSubstr("the worker was built with CUDA 12, but "));
}

}  // namespace
}  // namespace lodestone
