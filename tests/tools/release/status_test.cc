// tools/bazel/status in trees of all kinds.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/configs/deployment.h"
#include "tests/tools/release/release_run.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using testing::Not;

// 2026-11-21T00:00:00Z.
constexpr char kGit[] =
    "GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_COMMITTER_DATE='1795219200 +0000' "
    "git -c user.name=a -c user.email=a@b.example ";

class StatusTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasProgram("git")) GTEST_SKIP() << "git is not here";
  }

  // A tree with what the script looks at.
  static std::string Tree(const std::string& name) {
    const std::string tree = EmptyFolder(name);
    Do(absl::StrCat("mkdir -p ", tree, "/tools/bazel ", tree,
                    "/common/base && cp -L tools/bazel/status tools/bazel/archive ", tree,
                    "/tools/bazel/ && echo version > ", tree, "/common/base/version.h && touch -d @1700000000 ", tree,
                    "/common/base/version.h && echo 'tools/bazel/archive export-subst' > ", tree, "/.gitattributes"));
    return tree;
  }
  static void Commit(const std::string& tree) {
    Do(absl::StrCat("cd ", tree, " && ", kGit, "init -q && ", kGit, "add -A && ", kGit, "commit -q -m x"));
  }
  static std::string HeadOf(const std::string& tree) {
    return Do(absl::StrCat("git -C ", tree, " rev-parse HEAD")).substr(0, 12);
  }
  // From another folder, as Bazel or anybody may run it.
  static std::string StatusOf(const std::string& tree) {
    return Do(absl::StrCat("cd / && ", tree, "/tools/bazel/status"));
  }
};

TEST_F(StatusTest, InARepositoryItIsTheCommitAndWhetherFilesDiffer) {
  const std::string tree = Tree("repository");
  Commit(tree);
  const std::string commit = "STABLE_LODESTONE_COMMIT " + HeadOf(tree);
  const std::string time = "LODESTONE_TIME 1795219200\n";
  EXPECT_EQ(StatusOf(tree), commit + ", clean\n" + time);
  Do("echo other > " + tree + "/common/base/version.h");
  EXPECT_EQ(StatusOf(tree), commit + ", modified\n" + time);
  Do("git -C " + tree + " checkout -q common/base/version.h && touch " + tree + "/new");
  EXPECT_EQ(StatusOf(tree), commit + ", modified\n" + time) << "a file that git does not know";
}

TEST_F(StatusTest, InAnArchiveItIsTheCommitThatItWasMadeOf) {
  const std::string tree = Tree("archived");
  Commit(tree);
  const std::string archive = EmptyFolder("archive");
  Do(absl::StrCat("git -C ", tree, " archive HEAD | tar -x -C ", archive));
  EXPECT_EQ(StatusOf(archive),
            absl::StrCat("STABLE_LODESTONE_COMMIT ", HeadOf(tree), ", clean\nLODESTONE_TIME 1795219200\n"));
}

TEST_F(StatusTest, OfOtherTreesNobodyKnowsIt) {
  EXPECT_EQ(StatusOf(Tree("plain")), "LODESTONE_TIME 1700000000\n");
  const std::string outer = Tree("outer");
  Commit(outer);
  Do(absl::StrCat("mkdir ", outer, "/inner && cp -a ", outer, "/tools ", outer, "/common ", outer, "/inner"));
  EXPECT_EQ(StatusOf(outer + "/inner"), "LODESTONE_TIME 1700000000\n") << "it is in another one's repository";
}

TEST_F(StatusTest, WithoutGitNobodyKnowsIt) {
  const std::string tree = Tree("without_git");
  Commit(tree);
  const std::string programs = EmptyFolder("path");
  for (const char* program : {"bash", "dirname", "sed", "stat"}) {
    Do(absl::StrCat("ln -s $(command -v ", program, ") ", programs));
  }
  EXPECT_EQ(Do(absl::StrCat("PATH=", programs, " bash ", tree, "/tools/bazel/status")), "LODESTONE_TIME 1700000000\n");
}

// The file that git fills in is the one that the script reads.
TEST_F(StatusTest, TheTreesArchiveFileHasGitsPlaceholders) {
  const std::string archive = ReadProjectFile("tools/bazel/archive");
  EXPECT_THAT(archive, HasSubstr("\ncommit $Format:%H$\n"));
  EXPECT_THAT(archive, HasSubstr("\ntime $Format:%ct$\n"));
}

}  // namespace
}  // namespace lodestone
