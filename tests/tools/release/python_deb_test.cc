// The package `python3-lodestone` that tools/deb makes of this build's library.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
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

constexpr char kModules[] = "/usr/lib/python3/dist-packages";

class PythonDebTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!HasProgram("dpkg-shlibdeps")) return;
    package_ = Make("deb", "python_deb", kEpoch, "python3-*");
    tree_ = EmptyFolder("python_tree");
    Do(absl::StrCat("dpkg-deb -x ", package_, " ", tree_));
    scripts_ = EmptyFolder("python_scripts");
    Do(absl::StrCat("dpkg-deb -e ", package_, " ", scripts_));
  }
  void SetUp() override {
    if (!HasProgram("dpkg-shlibdeps")) GTEST_SKIP() << "dpkg-shlibdeps is not here (apt-get install dpkg-dev)";
  }

  static std::string Field(const std::string& name) {
    return Do(absl::StrCat("dpkg-deb -f ", package_, " ", name, " | tr -d '\\n'"));
  }

  static std::string package_, tree_, scripts_;
};
std::string PythonDebTest::package_, PythonDebTest::tree_, PythonDebTest::scripts_;

TEST_F(PythonDebTest, HoldsModulesLibraryExamplesAndPapers) {
  EXPECT_TRUE(
      absl::EndsWith(package_, absl::StrCat("/python3-lodestone_", kVersion, "-1_", Field("Architecture"), ".deb")))
      << package_;
  const std::vector<std::string> files = LinesOf(Do(absl::StrCat("cd ", tree_, " && find . -type f")));
  const std::string modules = absl::StrCat(".", kModules, "/lodestone");
  const std::string doc = "./usr/share/doc/python3-lodestone/";
  EXPECT_THAT(files,
              IsSupersetOf({modules + "/__init__.py", modules + "/torch.py", modules + "/py.typed",
                            modules + "/liblodestone.so", absl::StrCat(modules, "-", kVersion, ".dist-info/METADATA"),
                            doc + "examples/mnist.py", doc + "README.md.gz", doc + "copyright"}));
  EXPECT_THAT(files, Not(Contains(HasSubstr("/usr/bin/")))) << "those are the package lodestone's";
  EXPECT_EQ(Do(absl::StrCat("cd ", tree_, " && md5sum --quiet -c ", scripts_, "/md5sums")), "");
}

TEST_F(PythonDebTest, DependsOnPythonNumpyAndThePackagesOfTheLibraries) {
  for (const char* package : {"libc6 (>= ", "libgrpc++1", "libprotobuf", "python3 (>= 3.9)", "python3-numpy"}) {
    EXPECT_THAT(Field("Depends"), HasSubstr(package));
  }
  EXPECT_EQ(Field("Recommends"), absl::StrCat("lodestone (= ", kVersion, "-1)"));
}

TEST_F(PythonDebTest, TheSameFilesMakeTheSameBytes) {
  const std::string environment = absl::StrCat("umask 077; TZ=Asia/Tokyo LC_ALL=C.UTF-8 ", kEpoch);
  Do(absl::StrCat("cmp ", package_, " ", Make("deb", "python_again", environment, "python3-*")));
}

TEST_F(PythonDebTest, ItsPackageTrainsWithServersOfThePath) {
  const std::string programs = EmptyFolder("python_path");
  Do(absl::StrCat("ln -s '", ProgramsFolder(), "/lodestone-ps' ", programs));
  const std::string script =
      "import lodestone, numpy\n"
      "with lodestone.local(2) as servers, servers.connect() as cluster:\n"
      "    table = cluster.dense(\"t\", 3, lodestone.SGD(-1))\n"
      "    print(table.push_pull(numpy.ones(3)).result().tolist(), lodestone.version(), lodestone.__file__)\n";
  const std::string output =
      Do(absl::StrCat("env -i PATH='", programs, ":/usr/bin:/bin' PYTHONDONTWRITEBYTECODE=1 PYTHONPATH='", tree_,
                      kModules, "' /usr/bin/python3 -c '", script, "'"));
  EXPECT_EQ(output, absl::StrCat("[1.0, 1.0, 1.0] ", kVersion, " ", tree_, kModules, "/lodestone/__init__.py\n"));
}

TEST_F(PythonDebTest, ItsScriptsAreOfTheShell) {
  for (const char* script : {"postinst", "prerm"}) {
    Do(absl::StrCat("sh -n ", scripts_, "/", script, " && test -x ", scripts_, "/", script));
  }
}

}  // namespace
}  // namespace lodestone
