// The image's recipe, and the cluster of compose.yaml.
#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "common/base/host_port.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/configs/deployment.h"

namespace lodestone {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr char kContainerFolder[] = "configs/container/";

class ComposeTest : public ::testing::Test {
 protected:
  ComposeTest() : compose_(LoadDocuments(std::string(kContainerFolder) + "compose.yaml").at(0)) {}

  // A field of a service, its own or its anchor's: yaml-cpp leaves `<<` to us.
  static YAML::Node FieldOf(const YAML::Node& service, const std::string& name) {
    if (service[name]) return service[name];
    return service["<<"] ? FieldOf(service["<<"], name) : YAML::Node(YAML::NodeType::Undefined);
  }
  // The services whose command is `program`.
  std::map<std::string, YAML::Node> ServicesOf(const std::string& program) const {
    std::map<std::string, YAML::Node> found;
    for (const auto& entry : compose_["services"]) {
      if (entry.second["command"][0].as<std::string>() == program) {
        found.emplace(entry.first.as<std::string>(), entry.second);
      }
    }
    return found;
  }
  static CommandLine FlagsOf(const YAML::Node& service) {
    std::vector<std::string> arguments = StringsOf(service["command"]);
    arguments.erase(arguments.begin());
    return ParseCommandLine(arguments);
  }
  // What --check says of a service, as whose configuration the file is mounted that its flags name.
  static absl::StatusOr<v1::Config> ConfigOf(const YAML::Node& service) {
    const CommandLine flags = FlagsOf(service);
    EXPECT_THAT(StringsOf(service["volumes"]), Contains("./cluster.yaml:" + flags.config + ":ro"));
    return CheckedConfig(std::string(kContainerFolder) + "cluster.yaml", flags);
  }

  const YAML::Node compose_;
};

TEST_F(ComposeTest, EachPsHasARightConfigurationItsIndexAndItsName) {
  std::set<uint32_t> indices;
  for (const auto& [name, service] : ServicesOf("lodestone-ps")) {
    const absl::StatusOr<v1::Config> config = ConfigOf(service);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(ServicesOf("lodestone-ps").size(), config->cluster().servers());
    EXPECT_TRUE(indices.insert(config->server().index()).second) << name;
    EXPECT_EQ(config->server().advertise(), name + ":7000");
    EXPECT_EQ(config->server().listen(), "0.0.0.0:7000");
    EXPECT_THAT(StringsOf(service["volumes"]), Contains(name + ":" + config->server().data_dir()));
    EXPECT_TRUE(compose_["volumes"][name].IsDefined()) << name;
    if (config->server().index() == 0) {
      EXPECT_EQ(config->coordinator().address(), config->server().advertise());
    }
  }
}

TEST_F(ComposeTest, EachWorkerHasARightConfigurationItsIndexAndWaitsForEveryPs) {
  std::set<uint32_t> indices;
  for (const auto& [name, service] : ServicesOf("lodestone-worker")) {
    const absl::StatusOr<v1::Config> config = ConfigOf(service);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(ServicesOf("lodestone-worker").size(), config->cluster().workers());
    ASSERT_TRUE(config->worker().has_index());
    EXPECT_TRUE(indices.insert(config->worker().index()).second) << name;
    const YAML::Node waits = FieldOf(service, "depends_on");
    for (const auto& [ps, unused] : ServicesOf("lodestone-ps")) {
      ASSERT_TRUE(waits[ps].IsDefined()) << name << " does not wait for " << ps;
      EXPECT_EQ(waits[ps]["condition"].as<std::string>(), "service_healthy");
    }
    // The image's health check is a ps's.
    EXPECT_TRUE(FieldOf(service, "healthcheck")["disable"].as<bool>()) << name;
  }
}

TEST_F(ComposeTest, NothingRunsWithPowersOrAFileSystemToWriteTo) {
  for (const auto& entry : compose_["services"]) {
    SCOPED_TRACE(entry.first.as<std::string>());
    EXPECT_TRUE(FieldOf(entry.second, "read_only").as<bool>());
    EXPECT_EQ(StringsOf(FieldOf(entry.second, "cap_drop")), std::vector<std::string>{"ALL"});
    EXPECT_THAT(StringsOf(FieldOf(entry.second, "security_opt")), Contains("no-new-privileges:true"));
    EXPECT_TRUE(FieldOf(entry.second, "stop_grace_period").IsDefined());
  }
}

TEST_F(ComposeTest, IsUnderstoodByDockerCompose) {
  const std::string command = HasProgram("docker-compose") ? "docker-compose" : "docker compose";
  int exit_code = 0;
  if (RunShell(command + " version", &exit_code); exit_code != 0) GTEST_SKIP() << "docker compose is not here";
  const std::string text = RunShell(command + " -f configs/container/compose.yaml config", &exit_code);
  EXPECT_EQ(exit_code, 0) << text;
}

TEST(Containerfile, RunsAsNobodyInParticularOnItsVolumeAndPort) {
  const std::string text = ReadProjectFile(std::string(kContainerFolder) + "Containerfile");
  EXPECT_THAT(text, HasSubstr("\nUSER 10001:10001\n"));
  EXPECT_THAT(text, HasSubstr("\nVOLUME /var/lib/lodestone\n"));
  EXPECT_THAT(text, HasSubstr("\nEXPOSE 7000\n"));
  EXPECT_THAT(text, HasSubstr("CMD [\"psctl\", \"health\"]"));
}

TEST(Containerfile, KnowsEveryBuildArgumentThatToolsImageGivesIt) {
  const std::string recipe = ReadProjectFile(std::string(kContainerFolder) + "Containerfile");
  const std::string command = ReadProjectFile("tools/image");
  const std::regex argument("--build-arg \"?([A-Z_]+)=");
  std::set<std::string> names;
  for (std::sregex_iterator match(command.begin(), command.end(), argument), end; match != end; ++match) {
    names.insert((*match)[1]);
    EXPECT_THAT(recipe, HasSubstr("\nARG " + (*match)[1].str() + "="));
  }
  EXPECT_EQ(names, (std::set<std::string>{"BASE", "CUDA_TOOLKIT", "PROGRAMS", "VARIANT"}));
  for (const char* variant : {"cpu", "cuda"}) {
    EXPECT_THAT(recipe, HasSubstr("\nFROM runtime AS runtime-" + std::string(variant) + "\n"));
  }
}

// The packages of this machine that `program` itself is linked with.
std::set<std::string> PackagesOf(const std::string& program) {
  const std::string needed = std::string(std::getenv("TEST_TMPDIR")) + "/needed";
  int exit_code = 0;
  // dpkg may know a file without the /usr that links lead to.
  const std::string output = RunShell(
      "readelf -d " + program + " | sed -n 's/.*NEEDED.*\\[\\(.*\\)\\]/\\1/p' > " + needed + " && ldd " + program +
          " | awk 'NR == FNR { needed[$1] = 1; next } $1 in needed { print $3 }' " + needed +
          " - | xargs readlink -f | awk '{ print; sub(\"^/usr\", \"\"); print }' | xargs dpkg-query -S 2>/dev/null"
          " | cut -d: -f1 | sort -u",
      &exit_code);
  std::set<std::string> packages;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) packages.insert(line);
  return packages;
}

TEST(Containerfile, InstallsEveryLibraryThatTheProgramsAreLinkedWith) {
#ifdef LODESTONE_SANITIZER
  GTEST_SKIP() << "programs with a sanitizer need its library too";
#endif
  int exit_code = 0;
  const std::string system = RunShell(". /etc/os-release && echo $ID $VERSION_ID", &exit_code);
  if (system != "debian 12\n") GTEST_SKIP() << "the image is a Debian 12, this machine is not";
  if (!HasProgram("readelf")) GTEST_SKIP() << "readelf is not here";
  const std::string recipe = ReadProjectFile(std::string(kContainerFolder) + "Containerfile");
  const std::set<std::string> everywhere = {"libc6", "libgcc-s1", "libstdc++6"};  // Debian's own base.
  size_t found = 0;
  for (const char* program : {"server/ps", "worker/worker", "tools/psctl/psctl"}) {
    for (const std::string& package : PackagesOf(program)) {
      ++found;
      if (everywhere.count(package) != 0) continue;
      EXPECT_THAT(recipe, HasSubstr(" " + package + " ")) << program;
    }
  }
  EXPECT_GT(found, 10u) << "readelf, ldd or dpkg-query says something that this test does not understand";
}

}  // namespace
}  // namespace lodestone
