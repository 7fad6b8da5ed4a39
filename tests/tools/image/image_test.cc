// The image, made by tools/image from this build's programs, in a cluster of containers: as a stranger's podman would
// run it, but for the flags that a place without overlay file systems, cgroups or container networks needs.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/rpc/reserved_port.h"
#include "tests/configs/deployment.h"

namespace lodestone {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

constexpr char kImage[] = "localhost/lodestone-image-test";
constexpr char kCudaImage[] = "localhost/lodestone-cuda-image-test";
constexpr char kRunFlags[] =
    "--runtime runc --network host --ulimit nofile=1024:1024 --ulimit nproc=1000:1000 "
    "--read-only --read-only-tmpfs=false --cap-drop all --security-opt no-new-privileges --health-interval disable";

std::string TemporaryFile(const std::string& name) { return absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name); }

// Runs it; the test fails, with the output, if it does not end with 0.
std::string Do(const std::string& command) {
  int exit_code = 0;
  std::string output = RunShell(command, &exit_code);
  EXPECT_EQ(exit_code, 0) << command << "\n" << output;
  return output;
}
bool Succeeds(const std::string& command) {
  int exit_code = 0;
  RunShell(command, &exit_code);
  return exit_code == 0;
}

// Why images cannot be made here; empty if they can.
std::string Obstacle() {
  for (const char* program : {"podman", "buildah", "runc", "debootstrap"}) {
    if (!HasProgram(program))
      return absl::StrCat(program, " is not here (apt-get install podman buildah runc debootstrap)");
  }
  if (geteuid() != 0) return "debootstrap needs root";
  if (!Succeeds("podman info")) return "podman does not run here (podman info says why)";
  return "";
}

class ImageTest : public ::testing::Test {
 protected:
  // Builds the image, into a storage of the test's own.
  static void SetUpTestSuite() {
    std::ofstream(TemporaryFile("storage.conf"))
        << "[storage]\ndriver = \"vfs\"\ngraphroot = \"" << TemporaryFile("graph") << "\"\nrunroot = \""
        << TemporaryFile("run") << "\"\n";
    setenv("CONTAINERS_STORAGE_CONF", TemporaryFile("storage.conf").c_str(), 1);
    setenv("BUILDAH_ISOLATION", "chroot", 1);
    if (!Obstacle().empty()) return;
    const std::string bin = TemporaryFile("bin");
    Do(absl::StrCat("mkdir -p ", bin, " && cp -L server/ps ", bin, "/lodestone-ps && cp -L worker/worker ", bin,
                    "/lodestone-worker && cp -L tools/psctl/psctl ", bin));
    std::cout << Do(absl::StrCat("tools/image --engine podman --tag ", kImage, " --debootstrap --binaries ",
                                 TemporaryFile("bin"), " -- --layers=false"));
  }
  static void TearDownTestSuite() {
    if (Obstacle().empty()) Do(absl::StrCat("podman rmi --all --force && rm -rf ", TemporaryFile("graph")));
  }

  void SetUp() override {
    if (const std::string obstacle = Obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  }
  void TearDown() override {
    for (const std::string& name : containers_) {
      if (HasFailure()) std::cout << name << ":\n" << Do("podman logs " + name);
      Do("podman rm --force --time 0 --volumes " + name);
    }
  }

  // Starts a container with the configuration and `arguments` after the program's name, and a health check if it is a
  // ps at `address`.
  void Start(const std::string& name, const std::string& program, const std::string& arguments,
             const std::string& address = "") {
    const std::string as_ps = address.empty() ? "--no-healthcheck"
                                              : absl::StrCat("--health-cmd 'psctl health --address ", address,
                                                             "' --volume ", name, ":/var/lib/lodestone");
    containers_.push_back(name);
    Do(absl::StrCat("podman run --detach --name ", name, " ", kRunFlags, " ", as_ps, " --volume ",
                    TemporaryFile("cluster.yaml"), ":/etc/lodestone/cluster.yaml:ro ", kImage, " ", program,
                    " --config /etc/lodestone/cluster.yaml ", arguments));
  }
  static bool IsHealthy(const std::string& name) { return Succeeds("podman healthcheck run " + name); }
  static void AwaitHealth(const std::string& name) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    while (!IsHealthy(name)) ASSERT_LT(std::chrono::steady_clock::now(), end) << name << " does not get ready";
  }
  static std::string Exec(const std::string& name, const std::string& command) {
    return Do(absl::StrCat("podman exec ", name, " ", command));
  }
  // Rows and version of each table at that ps, as text.
  static std::string HeldBy(const std::string& name, const std::string& address) {
    const auto status = nlohmann::json::parse(Exec(name, absl::StrCat("psctl status --json --address ", address)));
    std::string held;
    for (const auto& table : status["tables"]) {
      absl::StrAppend(&held, table["name"].get<std::string>(), " rows ", table["rows"].dump(), " version ",
                      table["version_max"].dump(), "\n");
    }
    return held;
  }

  std::vector<std::string> containers_;
};

TEST_F(ImageTest, HasAUserAVolumeAPortAndAHealthCheck) {
  const auto image = nlohmann::json::parse(Do(absl::StrCat("podman image inspect ", kImage))).at(0);
  EXPECT_EQ(image["Config"]["User"], "10001:10001");
  EXPECT_TRUE(image["Config"]["Volumes"].contains("/var/lib/lodestone"));
  EXPECT_TRUE(image["Config"]["ExposedPorts"].contains("7000/tcp"));
  EXPECT_EQ(image["Healthcheck"]["Test"], nlohmann::json({"CMD", "psctl", "health"}));
  std::cout << "the image has " << image["Size"].get<int64_t>() / 1'000'000 << " MB\n";
}

TEST_F(ImageTest, TheCudaVariantHasCublasWhereTheWorkerLooksAndMissesTheDriverOnly) {
  if (Succeeds("grep -q 'built without CUDA' worker/worker")) GTEST_SKIP() << "this build has no CUDA toolkit";
  if (!Succeeds("ls /usr/local/cuda/include/cublas_api.h || ls /opt/cuda/include/cublas_api.h")) {
    GTEST_SKIP() << "the CUDA toolkit is not where tools/image looks for it";
  }
  // Upon the Debian that the other image was made of.
  Do(absl::StrCat("tools/image --engine podman --cuda --tag ", kCudaImage,
                  " --base localhost/lodestone-debian --binaries ", TemporaryFile("bin"), " -- --layers=false"));
  const auto image = nlohmann::json::parse(Do(absl::StrCat("podman image inspect ", kCudaImage))).at(0);
  const auto cpu = nlohmann::json::parse(Do(absl::StrCat("podman image inspect ", kImage))).at(0);
  for (const char* key : {"User", "Volumes", "ExposedPorts", "WorkingDir", "Cmd", "StopSignal"}) {
    EXPECT_EQ(image["Config"][key], cpu["Config"][key]) << key;
  }
  EXPECT_EQ(image["Healthcheck"], cpu["Healthcheck"]);
  EXPECT_THAT(image["Config"]["Env"].dump(), HasSubstr("NVIDIA_VISIBLE_DEVICES=all"));
  EXPECT_THAT(image["Config"]["Env"].dump(), HasSubstr("NVIDIA_DRIVER_CAPABILITIES=compute,utility"));
  EXPECT_THAT(cpu["Config"]["Env"].dump(), Not(HasSubstr("NVIDIA")));

  const std::string run = absl::StrCat("podman run --rm --no-healthcheck ", kRunFlags, " ");
  // Each library once, as a file, and nothing else that the other image has not.
  const std::string libraries = Do(absl::StrCat(run, kCudaImage, " find /usr /opt -name 'libcu*' -type f -size +1M"));
  EXPECT_THAT(libraries, MatchesRegex("(/usr/local/lib/libcublas(Lt)?\\.so\\.[0-9]+\n){2}"));
  EXPECT_EQ(Do(absl::StrCat(run, kImage, " find /usr /opt -name 'libcu*' -type f -size +1M")), "");
  // dlopen, by name: kernels/cublas.cc.
  Do(absl::StrCat(run, "--env PERL_DL_NONLAZY=1 ", kCudaImage, " sh -c \"perl -MDynaLoader -e ",
                  "'DynaLoader::dl_load_file(\\$ARGV[0]) or die DynaLoader::dl_error()' ",
                  "\\$(cd /usr/local/lib && echo libcublas.so.*)\""));
  int exit_code = 0;
  const std::string said =
      RunShell(absl::StrCat(run, kCudaImage,
                            " lodestone-worker --config /usr/share/lodestone/configs/gpu.yaml --set worker.index=0 ",
                            "--set coordinator.address=127.0.0.1:1 --set worker.device=cuda"),
               &exit_code);
  EXPECT_NE(exit_code, 0);
  EXPECT_THAT(said, HasSubstr("worker.device is cuda, but there is no CUDA driver here (libcuda.so.1)"));
  std::cout << "the CUDA image has " << image["Size"].get<int64_t>() / 1'000'000 << " MB\n";
}

TEST_F(ImageTest, TwoPsAndTwoWorkersTrainLeaveACheckpointAndComeBack) {
  const ReservedPort ports[2];
  std::ofstream(TemporaryFile("cluster.yaml"))
      << "cluster: {servers: 2, workers: 2}\n"
      << "coordinator: {address: '" << ports[0].address() << "', join_timeout_ms: 600000}\n"
      << "checkpoint: {every_ms: 0}\n"  // But at the end.
      << "model: {type: fm, embedding_dim: 4}\n"
      << "data: {generated: {train_samples: 100000, test_samples: 10000}}\n";
  const auto start_ps = [&](int index) {
    Start(absl::StrCat("lodestone-ps-", index), "lodestone-ps",
          absl::StrCat("--set server.index=", index, " --set server.listen=", ports[index].address(),
                       " --set server.data_dir=/var/lib/lodestone"),
          ports[index].address());
  };
  start_ps(0);
  EXPECT_FALSE(IsHealthy("lodestone-ps-0")) << "ps 1 is missing";
  start_ps(1);
  AwaitHealth("lodestone-ps-0");
  AwaitHealth("lodestone-ps-1");

  EXPECT_EQ(Exec("lodestone-ps-0", "id -u"), "10001\n");
  EXPECT_EQ(Exec("lodestone-ps-0", "readlink /proc/1/exe"), "/usr/local/bin/lodestone-ps\n");
  for (const char* path : {"/x", "/tmp/x", "/usr/local/bin/x"}) {
    EXPECT_FALSE(Succeeds(absl::StrCat("podman exec lodestone-ps-0 touch ", path))) << path << " can be written";
  }

  for (const char* index : {"0", "1"}) {
    Start(absl::StrCat("lodestone-worker-", index), "lodestone-worker", absl::StrCat("--set worker.index=", index));
  }
  EXPECT_EQ(Do("podman wait lodestone-worker-0 lodestone-worker-1"), "0\n0\n");
  std::string held[2];
  for (int i = 0; i < 2; ++i) {
    held[i] = HeldBy(absl::StrCat("lodestone-ps-", i), ports[i].address());
    EXPECT_THAT(held[i], HasSubstr("embedding rows ")) << i;
  }

  // SIGTERM; a process that is not done within the time is killed, which gives 137.
  Do("podman stop --time 120 lodestone-ps-1 lodestone-ps-0");
  for (int i = 0; i < 2; ++i) {
    const std::string name = absl::StrCat("lodestone-ps-", i);
    EXPECT_EQ(Do("podman inspect --format '{{.State.ExitCode}}' " + name), "0\n");
    EXPECT_THAT(Do(absl::StrCat("podman run --rm ", kRunFlags, " --no-healthcheck --volume ", name,
                                ":/var/lib/lodestone ", kImage, " find checkpoints -name ps-", i, ".manifest")),
                HasSubstr(absl::StrCat("/ps-", i, ".manifest")));
  }

  Do("podman start lodestone-ps-0 lodestone-ps-1");
  for (int i = 0; i < 2; ++i) {
    const std::string name = absl::StrCat("lodestone-ps-", i);
    AwaitHealth(name);
    EXPECT_EQ(HeldBy(name, ports[i].address()), held[i]);
  }
}

}  // namespace
}  // namespace lodestone
