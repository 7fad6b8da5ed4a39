#include "kernels/python_folders.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::kernels {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class PythonFoldersTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ =
        absl::StrCat(std::getenv("TEST_TMPDIR"), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(root_);
  }
  // A path below the test's folder, whose own folder is there.
  std::string At(const std::string& name) const {
    const std::string path = absl::StrCat(root_, "/", name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    return path;
  }
  void File(const std::string& name) const { std::ofstream(At(name)) << "a program"; }
  void Link(const std::string& name, const std::string& target) const {
    std::filesystem::create_symlink(target, At(name));
  }
  std::string Prefix(const std::string& name) const { return absl::StrCat(root_, "/", name, "/.."); }

  std::string root_;
};

TEST_F(PythonFoldersTest, EachPythonOfThePathHasAPrefix) {
  File("a/bin/python3");
  File("b/bin/python3");
  File("c/bin/python2");
  EXPECT_THAT(PythonPrefixes(absl::StrCat(root_, "/b/bin:", root_, "/c/bin::/nowhere:", root_, "/a/bin")),
              ElementsAre(Prefix("b/bin"), Prefix("a/bin")));
  EXPECT_THAT(PythonPrefixes(""), IsEmpty());
}

TEST_F(PythonFoldersTest, ALinkLeadsToAVirtualEnvironmentAndOnToThePythonThatItWasMadeWith) {
  File("usr/bin/python3.12");
  Link("usr/bin/python3", "python3.12");
  Link("opt/torch/.venv/bin/python3", At("usr/bin/python3"));
  Link("usr/local/bin/python3", "../../../opt/torch/.venv/bin/python3");
  const auto prefixes = PythonPrefixes(At("usr/local/bin"));
  ASSERT_EQ(prefixes.size(), 3u);
  EXPECT_EQ(prefixes[0], Prefix("usr/local/bin"));
  EXPECT_TRUE(std::filesystem::equivalent(prefixes[1], At("opt/torch/.venv"))) << prefixes[1];
  EXPECT_EQ(prefixes[2], Prefix("usr/bin")) << "once, though that python3 is a link too";
}

TEST_F(PythonFoldersTest, LinksThatLeadNowhereOrInACircleAreNoPython) {
  Link("a/python3", "/nowhere/python3");
  Link("b/python3", At("c/python3"));
  Link("c/python3", At("b/python3"));
  EXPECT_THAT(PythonPrefixes(absl::StrCat(root_, "/a:", root_, "/b:", root_, "/c")), IsEmpty());
}

}  // namespace
}  // namespace lodestone::kernels
