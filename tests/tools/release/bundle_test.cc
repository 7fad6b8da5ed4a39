// What tools/bundle makes of this build's programs.
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/configs/deployment.h"
#include "tests/tools/release/release_run.h"

namespace lodestone {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

// 2026-01-02T03:04:05Z.

class BundleTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { bundle_ = Make("bundle", "bundle", kEpoch); }

  // Unpacks it into an empty folder; the path of the one folder in it.
  static std::string Unpacked(const std::string& name) {
    const std::string folder = EmptyFolder(name);
    Do(absl::StrCat("tar -xzf ", bundle_, " -C '", folder, "'"));
    return absl::StrCat(folder, "/", Name());
  }
  static std::string Name() { return absl::StrCat("lodestone-", kVersion, "-linux-x86_64"); }

  static std::string bundle_;
};
std::string BundleTest::bundle_;

TEST_F(BundleTest, HoldsProgramsLibrariesConfigurationsAndPapers) {
  EXPECT_TRUE(absl::EndsWith(bundle_, absl::StrCat("/", Name(), ".tar.gz"))) << bundle_;
  const std::string folder = Unpacked("contents");
  const std::vector<std::string> files = LinesOf(Do(absl::StrCat("cd ", folder, " && find . -type f | sort")));
  EXPECT_THAT(files,
              IsSupersetOf({"./bin/lodestone-ps", "./bin/lodestone-worker", "./bin/psctl", "./configs/local.yaml",
                            "./configs/lodestone.schema.json", "./configs/systemd/lodestone-ps@.service",
                            "./CHANGELOG.md", "./LICENSE", "./NOTICES", "./README.md", "./SECURITY.md"}));
  EXPECT_THAT(files, Not(Contains("./bin/ps"))) << "on the PATH it would hide the system's";
  int libraries = 0;
  for (const std::string& file : files) {
    if (absl::StartsWith(file, "./lib/lodestone/lib") && absl::StrContains(file, ".so.")) {
      ++libraries;
    } else {
      EXPECT_FALSE(absl::StartsWith(file, "./lib/")) << file;
    }
  }
  EXPECT_GT(libraries, 10);
  EXPECT_EQ(Do(absl::StrCat("cmp ", folder, "/LICENSE LICENSE")), "");
}

TEST_F(BundleTest, NeedsNothingButGlibcAndGccsLibrariesFromOutside) {
  const std::string folder = Unpacked("libraries");
  std::set<std::string> outside;
  for (const std::string& line : LinesOf(Do(absl::StrCat("env -i ldd ", folder, "/bin/*")))) {
    EXPECT_FALSE(absl::StrContains(line, "not found")) << line;
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() < 3 || words[1] != "=>") continue;
    if (!absl::StrContains(words[2], "/lib/lodestone/")) outside.insert(words[0]);
  }
  for (const std::string& library : outside) {
    EXPECT_THAT((std::set<std::string>{"libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1"}),
                Contains(library));
  }
  EXPECT_THAT(outside, Contains("libc.so.6"));
}

TEST_F(BundleTest, TheSameProgramsMakeTheSameBytes) {
  const std::string again =
      Make("bundle", "another folder", absl::StrCat("umask 077; TZ=Asia/Tokyo LC_ALL=C.UTF-8 ", kEpoch));
  EXPECT_EQ(Do(absl::StrCat("cmp ", bundle_, " '", again, "'")), "");
  for (const std::string& line : LinesOf(Do(absl::StrCat("TZ=UTC tar --full-time -tvzf ", bundle_)))) {
    EXPECT_THAT(line, HasSubstr(" 0/0 "));
    EXPECT_THAT(line, HasSubstr(" 2026-01-02 03:04:05 "));
  }
}

TEST_F(BundleTest, RunsWhereverItLies) {
  const std::string before = Unpacked("before");
  const std::string folder = EmptyFolder("after it was moved") + "/here";
  Do(absl::StrCat("mv ", before, " '", folder, "'"));
  for (const char* program : {"lodestone-ps", "lodestone-worker", "psctl"}) {
    EXPECT_EQ(Do(absl::StrCat("env -i '", folder, "/bin/", program, "' --version")),
              absl::StrCat(program, " ", VersionText(), "\n"));
  }
  const std::string output = Do(SmallTraining(folder + "/bin/psctl", folder + "/configs/local.yaml"));
  EXPECT_THAT(output, HasSubstr("samples         4,000 in "));
}

TEST_F(BundleTest, NoticesHoldTheLicenceOfEveryLibrary) {
  const std::string folder = Unpacked("notices");
  const std::string notices = Do(absl::StrCat("cat ", folder, "/NOTICES"));
  std::set<std::string> packages = {"libcli11-dev", "nlohmann-json3-dev"};  // Compiled in.
  for (const std::string& name : LinesOf(Do(absl::StrCat("ls ", folder, "/lib/lodestone")))) {
    // Two names of one library may be of two packages (alternatives); either will do, since all are added.
    const std::string found =
        Do(absl::StrCat("dpkg -S $(realpath /usr/lib/x86_64-linux-gnu/", name,
                        ") $(realpath /usr/lib/x86_64-linux-gnu/", name, " | sed 's,^/usr,,') 2>/dev/null || true"));
    ASSERT_NE(found, "") << name;
    packages.insert(found.substr(0, found.find(':')));
  }
  EXPECT_GT(packages.size(), 5u);
  for (const std::string& package : packages) {
    const std::string version = Do("dpkg-query -W -f='${Version}' " + package);
    EXPECT_THAT(notices, HasSubstr(absl::StrCat(package, " ", version)));
    const std::string licence = Do(absl::StrCat("cat /usr/share/doc/", package, "/copyright"));
    EXPECT_TRUE(absl::StrContains(notices, licence)) << package;
  }
  EXPECT_TRUE(absl::StrContains(notices, Do("cat /usr/share/common-licenses/Apache-2.0")));
  const bool cuda = Do(absl::StrCat("grep -qa cudart ", folder, "/bin/lodestone-worker && echo yes || true")) != "";
  EXPECT_EQ(absl::StrContains(notices, "CUDA runtime"), cuda);
}

TEST_F(BundleTest, ProgramsThatWouldNotFindTheirLibrariesAreRefused) {
  const std::string folder = EmptyFolder("others");
  Do(absl::StrCat("for program in lodestone-ps lodestone-worker psctl; do cp /bin/true ", folder, "/$program; done"));
  EXPECT_THAT(DoFail(absl::StrCat("tools/bundle --binaries ", folder, " --out ", folder), 1),
              HasSubstr("lodestone-ps does not look for its libraries in lib/lodestone"));
}

TEST_F(BundleTest, AWrongCommandLineIsRefused) {
  for (const char* tool : {"tools/bundle", "tools/deb"}) {
    EXPECT_THAT(DoFail(absl::StrCat(tool, " --fast"), 2), HasSubstr("there is no '--fast'"));
    EXPECT_THAT(DoFail(absl::StrCat(tool, " --out"), 2), HasSubstr("--out needs a value"));
    EXPECT_THAT(DoFail(absl::StrCat(tool, " --binaries /nowhere"), 1), HasSubstr("/nowhere/lodestone-ps is not there"));
    const std::string help = Do(absl::StrCat(tool, " --help"));
    EXPECT_THAT(help, HasSubstr("--out DIR"));
    EXPECT_THAT(help, HasSubstr("--binaries DIR"));
  }
}

}  // namespace
}  // namespace lodestone
