// The bundle, the packages and Python's wheel on a bare Debian 12, which debootstrap makes of a mirror's packages.
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/configs/deployment.h"
#include "tests/tools/release/release_run.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using testing::Not;

// Why there can be none here; empty if there can.
std::string Obstacle() {
  for (const char* program : {"debootstrap", "unshare", "dpkg-shlibdeps"}) {
    if (!HasProgram(program)) return absl::StrCat(program, " is not here (apt-get install debootstrap dpkg-dev)");
  }
  return geteuid() == 0 ? "" : "debootstrap needs root";
}

class InstallTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!Obstacle().empty()) return;
    debian_ = EmptyFolder("debian");
    Do(absl::StrCat("debootstrap --variant=minbase bookworm ", debian_));
  }
  static void TearDownTestSuite() {
    if (!debian_.empty()) EmptyFolder("debian");
  }
  void SetUp() override {
    if (const std::string obstacle = Obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  }

  // The output of a command in there. Its /proc is gone when it ends.
  static std::string Inside(const std::string& command) {
    return Do(absl::StrCat("unshare --mount sh -c 'mount -t proc proc ", debian_, "/proc && exec chroot ", debian_,
                           " env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive sh -c \"",
                           command, "\"'"));
  }
  static std::string Train(const std::string& psctl, const std::string& config) {
    return Inside(absl::StrCat(psctl, " local ", config,
                               " --set data.generated.train_samples=4000 --set data.generated.test_samples=1000"));
  }

  // Trains with two servers of its own, by a Python of in there that has the package; without PyTorch and grpcio.
  static void ExpectPythonTrains(const std::string& python) {
    std::ofstream(absl::StrCat(debian_, "/tmp/train.py")) << kPythonTraining;
    EXPECT_EQ(Inside(absl::StrCat(python, " /tmp/train.py")), absl::StrCat("[1.0, 1.0, 1.0] ", kVersion, "\n"));
  }

  static std::string debian_;
};
std::string InstallTest::debian_;

TEST_F(InstallTest, TheBundleRunsOnABareDebian) {
  Do(absl::StrCat("mkdir ", debian_, "/opt/lodestone && tar -xzf ", Make("bundle", "bundle"), " -C ", debian_,
                  "/opt/lodestone --strip-components=1"));
  for (const char* program : {"lodestone-ps", "lodestone-worker", "psctl"}) {
    EXPECT_THAT(Inside(absl::StrCat("/opt/lodestone/bin/", program, " --version")), HasSubstr(program));
  }
  EXPECT_THAT(Train("/opt/lodestone/bin/psctl", "/opt/lodestone/configs/local.yaml"),
              HasSubstr("samples         4,000 in "));
}

TEST_F(InstallTest, ThePackageIsInstalledWithAllItNeedsAndRemoved) {
  Do(absl::StrCat("cp ", Make("deb", "deb", "", "lodestone_*"), " ", debian_, "/tmp/lodestone.deb"));
  Inside("apt-get -q update && apt-get -q -y --no-install-recommends install /tmp/lodestone.deb");
  EXPECT_THAT(Inside("id lodestone"), HasSubstr("(lodestone)"));
  EXPECT_THAT(Inside("lodestone-ps --version"), HasSubstr("lodestone-ps "));
  EXPECT_THAT(Train("psctl", "/usr/share/lodestone/configs/local.yaml"), HasSubstr("samples         4,000 in "));

  Inside(
      "echo >> /etc/lodestone/cluster.yaml && apt-get -q -y remove lodestone && test -f /etc/lodestone/cluster.yaml");
  const std::string wants = "/etc/systemd/system/multi-user.target.wants";
  const std::string enabled = absl::StrCat(wants, "/lodestone-ps@0.service");
  Inside(absl::StrCat("mkdir -p ", wants, " && ln -s /lib/systemd/system/lodestone-ps@.service ", enabled));
  Inside(absl::StrCat("apt-get -q -y purge lodestone && test ! -e /etc/lodestone && test ! -e /usr/bin/psctl && ",
                      "test ! -L ", enabled));
  EXPECT_THAT(Inside("dpkg -l lodestone || true"), Not(HasSubstr("\nii ")));
  EXPECT_THAT(Inside("id lodestone"), HasSubstr("(lodestone)")) << "what it wrote is still its";
}

TEST_F(InstallTest, PipInstallsTheWheelAndItTrainsByTheServersThatItCarries) {
  const std::string wheel = Make("wheel", "wheel");
  Do(absl::StrCat("cp ", wheel, " ", debian_, "/tmp/"));
  Inside("apt-get -q update && apt-get -q -y --no-install-recommends install python3-venv python3-numpy");
  Inside(
      absl::StrCat("python3 -m venv --system-site-packages /opt/venv && /opt/venv/bin/pip install --quiet --no-index ",
                   "--disable-pip-version-check /tmp/", wheel.substr(wheel.rfind('/') + 1)));
  ExpectPythonTrains("/opt/venv/bin/python");
}

TEST_F(InstallTest, ThePackageForPythonIsInstalledWithAllItNeeds) {
  Do(absl::StrCat("cp ", Make("deb", "python_deb", "", "python3-*"), " ", debian_, "/tmp/python3-lodestone.deb && cp ",
                  Make("deb", "deb_of_servers", "", "lodestone_*"), " ", debian_, "/tmp/lodestone.deb"));
  Inside(
      "apt-get -q update && apt-get -q -y --no-install-recommends install /tmp/lodestone.deb "
      "/tmp/python3-lodestone.deb");
  ExpectPythonTrains("python3");
  Inside("apt-get -q -y purge python3-lodestone lodestone");
}

}  // namespace
}  // namespace lodestone
