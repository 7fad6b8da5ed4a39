// The package `lodestone` that tools/deb makes of this build's programs.
#include <filesystem>
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

class DebTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!HasProgram("dpkg-shlibdeps")) return;
    package_ = Make("deb", "deb", kEpoch, "lodestone_*");
    tree_ = EmptyFolder("tree");
    Do(absl::StrCat("dpkg-deb -x ", package_, " ", tree_));
    scripts_ = EmptyFolder("scripts");
    Do(absl::StrCat("dpkg-deb -e ", package_, " ", scripts_));
  }
  void SetUp() override {
    if (!HasProgram("dpkg-shlibdeps")) GTEST_SKIP() << "dpkg-shlibdeps is not here (apt-get install dpkg-dev)";
  }

  static std::string Field(const std::string& name) {
    return Do(absl::StrCat("dpkg-deb -f ", package_, " ", name, " | tr -d '\\n'"));
  }
  static std::string ManPage(const std::string& program) {
    return Do(absl::StrCat("zcat ", tree_, "/usr/share/man/man1/", program, ".1.gz"));
  }

  static std::string package_, tree_, scripts_;
};
std::string DebTest::package_, DebTest::tree_, DebTest::scripts_;

TEST_F(DebTest, HoldsProgramsUnitsExamplesAndPapers) {
  EXPECT_TRUE(absl::EndsWith(package_, absl::StrCat("/lodestone_", kVersion, "-1_", Field("Architecture"), ".deb")))
      << package_;
  const std::vector<std::string> files = LinesOf(Do(absl::StrCat("cd ", tree_, " && find . -type f")));
  EXPECT_THAT(
      files, IsSupersetOf({"./usr/bin/lodestone-ps", "./usr/bin/lodestone-worker", "./usr/bin/psctl",
                           "./etc/lodestone/cluster.yaml", "./lib/systemd/system/lodestone-ps@.service",
                           "./lib/systemd/system/lodestone-worker@.service", "./usr/share/lodestone/configs/local.yaml",
                           "./usr/share/lodestone/configs/systemd/lodestone-worker-gpu.conf",
                           "./usr/share/lodestone/configs/lodestone.schema.json", "./usr/share/man/man1/psctl.1.gz",
                           "./usr/share/man/man1/lodestone-ps.1.gz", "./usr/share/man/man1/lodestone-worker.1.gz",
                           "./usr/share/doc/lodestone/copyright", "./usr/share/doc/lodestone/changelog.Debian.gz"}));
  EXPECT_THAT(files, Not(Contains("./usr/bin/ps"))) << "that is procps's";
  EXPECT_EQ(Do(absl::StrCat("cat ", scripts_, "/conffiles")), "/etc/lodestone/cluster.yaml\n");
  EXPECT_EQ(Do(absl::StrCat("cd ", tree_, " && md5sum --quiet -c ", scripts_, "/md5sums")), "");
  EXPECT_EQ(LinesOf(Do(absl::StrCat("cat ", scripts_, "/md5sums"))).size(), files.size() - 1) << "all but the conffile";
}

TEST_F(DebTest, DependsOnThePackagesOfTheLibraries) {
  EXPECT_EQ(Field("Version"), absl::StrCat(kVersion, "-1"));
  const std::string depends = Field("Depends");
  for (const char* package :
       {"libc6 (>= ", "libstdc++6 (>= ", "libgrpc++1", "libprotobuf", "libopenblas0", "adduser"}) {
    EXPECT_THAT(depends, HasSubstr(package));
  }
}

TEST_F(DebTest, TheSameProgramsMakeTheSameBytes) {
  const std::string again =
      Make("deb", "again", absl::StrCat("umask 077; TZ=Asia/Tokyo LC_ALL=C.UTF-8 ", kEpoch), "lodestone_*");
  EXPECT_EQ(Do(absl::StrCat("cmp ", package_, " ", again)), "");
  for (const std::string& line : LinesOf(Do(absl::StrCat("TZ=UTC dpkg-deb -c ", package_)))) {
    EXPECT_THAT(line, HasSubstr(" root/root "));
    EXPECT_THAT(line, HasSubstr(" 2026-01-02 03:04 "));
  }
}

TEST_F(DebTest, PsctlFindsItsProgramsUnderThePackagesNames) {
  for (const char* program : {"lodestone-ps", "lodestone-worker", "psctl"}) {
    EXPECT_EQ(Do(absl::StrCat(tree_, "/usr/bin/", program, " --version")),
              absl::StrCat(program, " ", VersionText(), "\n"));
  }
  // As in /usr/bin, where another ps is.
  Do(absl::StrCat("cp /bin/false ", tree_, "/usr/bin/ps"));
  const std::string output =
      Do(SmallTraining(tree_ + "/usr/bin/psctl", tree_ + "/usr/share/lodestone/configs/local.yaml"));
  EXPECT_THAT(output, HasSubstr("samples         4,000 in "));
  Do(absl::StrCat("rm ", tree_, "/usr/bin/ps"));
}

TEST_F(DebTest, TheClustersConfigurationIsRight) {
  const std::string checked = Do(absl::StrCat(tree_, "/usr/bin/psctl check ", tree_, "/etc/lodestone/cluster.yaml"));
  EXPECT_THAT(checked, HasSubstr("address: \"127.0.0.1:7000\""));
}

TEST_F(DebTest, TheUnitsRunThePackagesPrograms) {
  for (const std::string program : {"ps", "worker"}) {
    const std::string path = absl::StrCat(tree_, "/lib/systemd/system/lodestone-", program, "@.service");
    const std::string unit = Do("cat " + path);
    EXPECT_THAT(unit, HasSubstr(absl::StrCat("\nExecStart=/usr/bin/lodestone-", program,
                                             " --config /etc/lodestone/cluster.yaml ")));
    EXPECT_THAT(unit, Not(HasSubstr("/opt/lodestone")));
    if (!HasProgram("systemd-analyze")) continue;
    const std::string instance = absl::StrCat(EmptyFolder("units"), "/lodestone-", program, "@1.service");
    Do(absl::StrCat("sed 's,/usr/bin/,", tree_, "&,' ", path, " > ", instance));
    EXPECT_THAT(Do("systemd-analyze verify --man=no " + instance), Not(HasSubstr(instance)));
  }
  EXPECT_FALSE(std::filesystem::exists(tree_ + "/lib/systemd/system/lodestone-worker@.service.d"))
      << "devices are hidden until a person switches that off";
  const std::string ps = Do(absl::StrCat("cat ", tree_, "/lib/systemd/system/lodestone-ps@.service"));
  EXPECT_THAT(ps, HasSubstr("\nUser=lodestone\n"));
  EXPECT_THAT(ps, Not(HasSubstr("DynamicUser"))) << "the package makes that user";
  EXPECT_THAT(Do(absl::StrCat("cat ", scripts_, "/postinst")), HasSubstr("adduser --system"));
}

TEST_F(DebTest, ItsScriptsAreOfTheShell) {
  for (const char* script : {"postinst", "prerm", "postrm"}) {
    Do(absl::StrCat("sh -n ", scripts_, "/", script, " && test -x ", scripts_, "/", script));
  }
}

TEST_F(DebTest, ManPagesSayWhatHelpSays) {
  EXPECT_THAT(ManPage("lodestone-ps"), HasSubstr("\n.SH OPTIONS\n"));
  EXPECT_THAT(ManPage("lodestone-ps"), HasSubstr("\nUsage: lodestone\\-ps [OPTIONS]\n"));
  EXPECT_THAT(ManPage("lodestone-worker"), HasSubstr("\\-\\-summary FILE"));
  for (const char* verb : {"local", "status", "verify"}) {
    EXPECT_THAT(ManPage("psctl"), HasSubstr(absl::StrCat("\n.SH psctl ", verb, "\n")));
  }
  EXPECT_THAT(ManPage("psctl"), HasSubstr("\\-\\-summary"));
}

TEST_F(DebTest, ManFindsNothingWrongInThem) {
  if (!HasProgram("man")) GTEST_SKIP() << "man is not here";
  for (const char* program : {"lodestone-ps", "lodestone-worker", "psctl"}) {
    EXPECT_EQ(Do(absl::StrCat("LC_ALL=C.UTF-8 MANROFFSEQ= MANWIDTH=80 man --warnings -E UTF-8 -l -Tutf8 -Z ", tree_,
                              "/usr/share/man/man1/", program, ".1.gz 2>&1 >/dev/null")),
              "");
  }
}

TEST_F(DebTest, TheShellsCompletionIsThatOfPsctl) {
  for (const auto& [shell, file] : {std::pair("bash", "bash-completion/completions/psctl"),
                                    {"zsh", "zsh/vendor-completions/_psctl"},
                                    {"fish", "fish/vendor_completions.d/psctl.fish"}}) {
    const std::string completion = Do(absl::StrCat(tree_, "/usr/bin/psctl completion ", shell));
    EXPECT_THAT(completion, HasSubstr(absl::StrCat(shell, " completion of psctl")));
    EXPECT_EQ(Do(absl::StrCat("cat ", tree_, "/usr/share/", file)), completion);
  }
}

}  // namespace
}  // namespace lodestone
