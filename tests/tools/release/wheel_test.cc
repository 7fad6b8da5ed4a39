// What tools/wheel makes of this build's library and ps.
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/release/release_run.h"

namespace lodestone {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;

class WheelTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { wheel_ = Make("wheel", "wheel", kEpoch); }

  // Unpacks it, as pip does, into an empty folder, and returns that.
  static std::string Unpacked(const std::string& name) {
    const std::string folder = EmptyFolder(name);
    Do(absl::StrCat("python3 -m zipfile -e '", wheel_, "' '", folder, "'"));
    return folder;
  }
  // Trains by the package in the folder.
  static void ExpectTrains(const std::string& folder) {
    const std::string output =
        Do(absl::StrCat("env -i PYTHONPATH='", folder, "' /usr/bin/python3 -c '", kPythonTraining, "'"));
    EXPECT_EQ(output, absl::StrCat("[1.0, 1.0, 1.0] ", kVersion, "\n"));
  }
  static std::string wheel_;
};
std::string WheelTest::wheel_;

TEST_F(WheelTest, HoldsModulesLibraryAndServer) {
  EXPECT_TRUE(absl::StrContains(wheel_, absl::StrCat("/lodestone-", kVersion, "-py3-none-manylinux_2_"))) << wheel_;
  const std::string folder = Unpacked("contents");
  const std::vector<std::string> files = LinesOf(Do(absl::StrCat("cd ", folder, " && find . -type f | sort")));
  const std::string info = absl::StrCat("./lodestone-", kVersion, ".dist-info/");
  EXPECT_THAT(files, IsSupersetOf({std::string("./lodestone/__init__.py"), std::string("./lodestone/torch.py"),
                                   std::string("./lodestone/py.typed"), std::string("./lodestone/liblodestone.so"),
                                   std::string("./lodestone/bin/lodestone-ps"), std::string("./lodestone/NOTICES"),
                                   info + "METADATA", info + "RECORD", info + "WHEEL", info + "LICENSE"}));
  // Every file is in the record, with its size.
  const std::string record = Do(absl::StrCat("cat ", folder, "/", info, "RECORD"));
  for (const std::string& file : files) EXPECT_THAT(record, HasSubstr(absl::StrCat(file.substr(2), ","))) << file;
}

TEST_F(WheelTest, NeedsNothingButGlibcAndGccsLibrariesFromOutside) {
  const std::string folder = Unpacked("libraries");
  const std::set<std::string> machine = {"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"};
  size_t carried = 0;
  for (const std::string& line :
       LinesOf(Do(absl::StrCat("env -i ldd ", folder, "/lodestone/liblodestone.so; chmod +x ", folder,
                               "/lodestone/bin/lodestone-ps; env -i ldd ", folder, "/lodestone/bin/lodestone-ps")))) {
    EXPECT_FALSE(absl::StrContains(line, "not found")) << line;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() < 3 || words[1] != "=>") continue;
    if (absl::StrContains(words[2], "/lib/lodestone/")) {
      ++carried;
    } else {
      EXPECT_THAT(machine, Contains(words[0])) << line;
    }
  }
  EXPECT_GT(carried, 20u);
}

TEST_F(WheelTest, TheSameFilesMakeTheSameBytes) {
  Do(absl::StrCat("cmp '", wheel_, "' '", Make("wheel", "again", kEpoch), "'"));
}

TEST_F(WheelTest, ItsPackageTrainsWithItsServers) {
  const std::string folder = Unpacked("use");
  Do(absl::StrCat("chmod +x ", folder, "/lodestone/bin/lodestone-ps"));
  ExpectTrains(folder);
}

TEST_F(WheelTest, PipInstallsItAndItTrainsThen) {
  if (std::system("/usr/bin/python3 -m pip --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "pip is not here";
  const std::string folder = EmptyFolder("installed");
  Do(absl::StrCat("env -i HOME='", folder,
                  "' /usr/bin/python3 -m pip install --quiet --no-index --no-deps --no-cache-dir",
                  " --disable-pip-version-check --target '", folder, "' '", wheel_, "'"));
  ExpectTrains(folder);
}

}  // namespace
}  // namespace lodestone
