// The units of configs/systemd.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/configs/deployment.h"

namespace lodestone {
namespace {

using testing::ElementsAre;

constexpr char kGpuDropIn[] = "configs/systemd/lodestone-worker-gpu.conf";

std::string UnitOf(const std::string& program) {
  return ReadProjectFile(absl::StrCat("configs/systemd/lodestone-", program, "@.service"));
}

// The value of a setting that is there once.
std::string ValueOf(const std::string& unit, const std::string& name) {
  std::vector<std::string> values;
  for (const absl::string_view line : absl::StrSplit(unit, '\n')) {
    if (absl::StartsWith(line, name + "=")) values.emplace_back(line.substr(name.size() + 1));
  }
  EXPECT_EQ(values.size(), 1u) << name;
  return values.empty() ? "" : values[0];
}

// What the unit's instance 1 starts, on the host `ps1`.
std::vector<std::string> WordsOf(const std::string& program) {
  const std::string command =
      absl::StrReplaceAll(ValueOf(UnitOf(program), "ExecStart"), {{"%i", "1"}, {"%H", "ps1"}, {" $FLAGS", ""}});
  return absl::StrSplit(command, ' ');
}

TEST(Systemd, APsGetsItsIndexItsNameAndItsFolder) {
  const std::vector<std::string> words = WordsOf("ps");
  EXPECT_EQ(words[0], "/opt/lodestone/bin/lodestone-ps");
  const CommandLine flags = ParseCommandLine({words.begin() + 1, words.end()});
  const absl::StatusOr<v1::Config> config = CheckedConfig("configs/local.yaml", flags);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->server().index(), 1u);
  EXPECT_EQ(config->server().advertise(), "ps1:7000");
  EXPECT_EQ(config->server().data_dir(), "/var/lib/" + ValueOf(UnitOf("ps"), "StateDirectory"));
}

TEST(Systemd, AWorkerGetsItsIndex) {
  const std::vector<std::string> words = WordsOf("worker");
  EXPECT_EQ(words[0], "/opt/lodestone/bin/lodestone-worker");
  const absl::StatusOr<v1::Config> config =
      CheckedConfig("configs/local.yaml", ParseCommandLine({words.begin() + 1, words.end()}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->worker().index(), 1u);
}

TEST(Systemd, FlagsOfOneMachineWinOverTheUnits) {
  for (const char* program : {"ps", "worker"}) {
    EXPECT_TRUE(absl::EndsWith(ValueOf(UnitOf(program), "ExecStart"), " $FLAGS")) << program;
    EXPECT_EQ(ValueOf(UnitOf(program), "EnvironmentFile"), absl::StrCat("-/etc/lodestone/", program, "-%i.env"));
  }
}

// The settings of a unit or a drop-in, "NAME=VALUE", in order.
std::vector<std::string> SettingsOf(const std::string& text) {
  std::vector<std::string> settings;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line[0] != '#' && line[0] != '[') settings.emplace_back(line);
  }
  return settings;
}

TEST(Systemd, AWorkersUnitHidesDevicesAndTheDropInLetsInThoseOfCudaAlone) {
  const std::string unit = UnitOf("worker");
  EXPECT_EQ(ValueOf(unit, "PrivateDevices"), "yes");
  EXPECT_EQ(ValueOf(unit, "MemoryDenyWriteExecute"), "yes");
  const std::string cache = absl::StrCat("%S/", ValueOf(unit, "StateDirectory"), "/cuda");
  EXPECT_THAT(SettingsOf(ReadProjectFile(kGpuDropIn)),
              ElementsAre("Wants=modprobe@nvidia_uvm.service nvidia-persistenced.service",
                          "After=modprobe@nvidia_uvm.service nvidia-persistenced.service", "PrivateDevices=no",
                          "DevicePolicy=closed", "DeviceAllow=char-nvidia rw", "DeviceAllow=char-nvidia-frontend rw",
                          "DeviceAllow=char-nvidiactl rw", "DeviceAllow=char-nvidia-uvm rw",
                          "DeviceAllow=char-nvidia-caps r", "MemoryDenyWriteExecute=no",
                          "Environment=CUDA_CACHE_PATH=" + cache, "SystemCallFilter=sched_setaffinity set_mempolicy"));
}

TEST(Systemd, SystemdFindsNothingWrong) {
  if (!HasProgram("systemd-analyze")) GTEST_SKIP() << "systemd-analyze is not here";
  const std::string drop_ins = absl::StrCat(std::getenv("TEST_TMPDIR"), "/lodestone-worker@1.service.d");
  std::filesystem::create_directories(drop_ins);
  std::ofstream(drop_ins + "/gpu.conf") << ReadProjectFile(kGpuDropIn);
  for (const std::string program : {"ps", "worker"}) {
    // An instance, with a program that is there.
    int exit_code = 0;
    const std::string binary =
        RunShell(absl::StrCat("readlink -f ", program == "ps" ? "server/" : "worker/", program), &exit_code);
    const std::string path = absl::StrCat(std::getenv("TEST_TMPDIR"), "/lodestone-", program, "@1.service");
    std::ofstream(path) << absl::StrReplaceAll(
        UnitOf(program),
        {{absl::StrCat("/opt/lodestone/bin/lodestone-", program), binary.substr(0, binary.find('\n'))}});
    const std::string text = RunShell("systemd-analyze verify --man=no " + path, &exit_code);
    EXPECT_EQ(exit_code, 0) << text;
    EXPECT_FALSE(absl::StrContains(text, path)) << text;  // It warns, and ends with 0.
    EXPECT_FALSE(absl::StrContains(text, drop_ins)) << text;
  }
}

}  // namespace
}  // namespace lodestone
