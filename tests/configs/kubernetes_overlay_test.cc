// The overlays of configs/kubernetes, as kustomize makes them.
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/configs/deployment.h"
#include "tests/configs/kubernetes.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

// What `kubectl kustomize` makes of an overlay, once `edit`, a command in its folder, has changed it; empty if neither
// it nor kustomize is here.
std::string Rendered(const std::string& overlay, const std::string& edit = "true") {
  const std::string command = HasProgram("kubectl")     ? "kubectl kustomize "
                              : HasProgram("kustomize") ? "kustomize build "
                                                        : "";
  if (command.empty()) return "";
  // Bazel's links lead out of the folder, which kustomize does not follow.
  const std::string copy = absl::StrCat(std::getenv("TEST_TMPDIR"), "/", overlay);
  int exit_code = 0;
  std::string text =
      RunShell(absl::StrCat("rm -rf ", copy, " && cp -rL ", KubernetesPath(""), " ", copy, " && (cd ", copy,
                            "/overlays/", overlay, " && ", edit, ") && ", command, copy, "/overlays/", overlay),
               &exit_code);
  EXPECT_EQ(exit_code, 0) << text;
  return text;
}

TEST(GpuOverlay, TheWorkersHaveADeviceEachAndTheImageForIt) {
  const YAML::Node overlay = LoadDocuments(KubernetesPath("overlays/gpu/kustomization.yaml")).at(0);
  ASSERT_EQ(overlay["patches"].size(), 1u);
  const YAML::Node patch = ParseDocuments(overlay["patches"][0]["patch"].as<std::string>()).at(0);
  const YAML::Node job = Base().Get("Job/lodestone-worker");
  for (const char* field : {"apiVersion", "kind"}) {
    EXPECT_EQ(patch[field].as<std::string>(), job[field].as<std::string>());
  }
  EXPECT_EQ(patch["metadata"]["name"].as<std::string>(), job["metadata"]["name"].as<std::string>());
  EXPECT_EQ(ContainerOf(patch)["name"].as<std::string>(), ContainerOf(job)["name"].as<std::string>());
  const std::string image = ContainerOf(patch)["image"].as<std::string>();
  EXPECT_EQ(image, Overlays().at("gpu").worker_image);
  EXPECT_THAT(ReadProjectFile("tools/image"), HasSubstr(absl::StrCat("with --cuda: ", image, ")")));
  std::map<std::string, std::string> tags;
  for (const YAML::Node& each : overlay["images"])
    tags[each["name"].as<std::string>()] = each["newTag"].as<std::string>();
  EXPECT_EQ(tags, (std::map<std::string, std::string>{{"lodestone", kVersion}, {image, kVersion}}));
  const absl::StatusOr<v1::Config> config = CheckedConfig(Overlays().at("gpu").config, FlagsOf(job, 0));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->worker().device(), "cuda") << "a device that is not used would be kept from others";

  const std::string text = Rendered("gpu");
  if (text.empty()) GTEST_SKIP() << "neither kubectl nor kustomize is here";
  const Manifests rendered(ParseDocuments(text));
  const YAML::Node worker = rendered.Get("Job/lodestone-worker"), ps = rendered.Get("StatefulSet/lodestone-ps");
  EXPECT_EQ(ContainerOf(worker)["resources"]["limits"]["nvidia.com/gpu"].as<int>(), 1);
  EXPECT_EQ(PodOf(worker)["tolerations"][0]["key"].as<std::string>(), "nvidia.com/gpu");
  EXPECT_FALSE(ContainerOf(ps)["resources"]["limits"]["nvidia.com/gpu"].IsDefined());
  EXPECT_FALSE(PodOf(ps)["tolerations"].IsDefined());
  // What the patch does not name is as it was.
  EXPECT_EQ(StringsOf(ContainerOf(worker)["args"]), StringsOf(ContainerOf(job)["args"]));
  EXPECT_TRUE(ContainerOf(worker)["securityContext"]["readOnlyRootFilesystem"].as<bool>());
}

class OverlayTest : public ::testing::TestWithParam<std::string> {};

TEST_P(OverlayTest, IsRenderedWithItsConfigurationItsNumbersAndAnImage) {
  const std::string text = Rendered(GetParam());
  if (text.empty()) GTEST_SKIP() << "neither kubectl nor kustomize is here";
  const Overlay expected = Overlays().at(GetParam());
  const Manifests rendered(ParseDocuments(text));
  std::string map;
  for (const auto& [key, document] : rendered.all()) {
    EXPECT_EQ(document["metadata"]["labels"]["app.kubernetes.io/part-of"].as<std::string>(), "lodestone") << key;
    if (document["kind"].as<std::string>() != "ConfigMap") continue;
    EXPECT_EQ(document["data"]["cluster.yaml"].as<std::string>(), ReadProjectFile(expected.config));
    map = document["metadata"]["name"].as<std::string>();
  }
  EXPECT_THAT(map, testing::StartsWith("lodestone-")) << "a new configuration is to restart the ps";
  EXPECT_EQ(rendered.Get("StatefulSet/lodestone-ps")["spec"]["replicas"].as<int>(), expected.servers);
  for (const char* key : {"StatefulSet/lodestone-ps", "Job/lodestone-worker"}) {
    EXPECT_EQ(PodOf(rendered.Get(key))["volumes"][0]["configMap"]["name"].as<std::string>(), map) << key;
    ASSERT_EQ(PodOf(rendered.Get(key))["containers"].size(), 1u) << key;
  }
  EXPECT_EQ(ContainerOf(rendered.Get("StatefulSet/lodestone-ps"))["image"].as<std::string>(),
            absl::StrCat("lodestone:", kVersion));
  EXPECT_EQ(ContainerOf(rendered.Get("Job/lodestone-worker"))["image"].as<std::string>(),
            absl::StrCat(expected.worker_image, ":", kVersion));
  // Two copies of a shard are not to be on one node.
  const YAML::Node affinity = PodOf(rendered.Get("StatefulSet/lodestone-ps"))["affinity"]["podAntiAffinity"];
  EXPECT_EQ(affinity["requiredDuringSchedulingIgnoredDuringExecution"].IsDefined(), GetParam() == "etcd");
  if (GetParam() != "etcd") return;
  EXPECT_TRUE(Selects(affinity["requiredDuringSchedulingIgnoredDuringExecution"][0]["labelSelector"]["matchLabels"],
                      LabelsOf(rendered.Get("StatefulSet/lodestone-ps"))));
}

TEST_P(OverlayTest, IsRenderedWithMonitorsWhereItIsToldTo) {
  const std::string text = Rendered(GetParam(), "sed -i 's/^# \\(components: [^#]*\\)#.*/\\1/' kustomization.yaml");
  if (text.empty()) GTEST_SKIP() << "neither kubectl nor kustomize is here";
  const Manifests rendered(ParseDocuments(text));
  rendered.Get("ServiceMonitor/lodestone-ps");
  rendered.Get("PodMonitor/lodestone-worker");
  const YAML::Node job = rendered.Get("Job/lodestone-worker");
  const absl::StatusOr<HostPort> listen = ParseHostPort(FlagsOf(job, 0).ValueOf("worker.http_listen"));
  ASSERT_TRUE(listen.ok()) << listen.status();
  EXPECT_TRUE(IsWildcard(listen->host));
  EXPECT_EQ(ContainerOf(job)["ports"][0]["containerPort"].as<int>(), listen->port);
  for (const char* key : {"NetworkPolicy/lodestone-ps", "NetworkPolicy/lodestone-worker"}) {
    const YAML::Node rules = rendered.Get(key)["spec"]["ingress"];
    const YAML::Node last = rules[rules.size() - 1];
    EXPECT_TRUE(last["from"][0]["namespaceSelector"]["matchLabels"].IsDefined()) << key;
    ASSERT_EQ(last["ports"].size(), 1u) << key << ": nothing but metrics is for others";
    EXPECT_EQ(last["ports"][0]["port"].as<std::string>(), "http") << key;
  }
}

TEST_P(OverlayTest, IsRenderedWithMutualTlsWhereItIsToldTo) {
  const std::string text = Rendered(GetParam(), "echo 'components: [../../components/tls]' >>kustomization.yaml");
  if (text.empty()) GTEST_SKIP() << "neither kubectl nor kustomize is here";
  const std::string file = Overlays().at(GetParam()).config;
  const std::string manual = ReadProjectFile(KubernetesPath("components/tls/kustomization.yaml"));
  const Manifests rendered(ParseDocuments(text));
  for (const char* key : {"StatefulSet/lodestone-ps", "Job/lodestone-worker"}) {
    SCOPED_TRACE(key);
    const YAML::Node workload = rendered.Get(key);
    const absl::StatusOr<v1::Config> config = CheckedConfig(file, FlagsOf(workload, 0));
    ASSERT_TRUE(config.ok()) << config.status();
    std::map<std::string, std::string> mounts, secrets;  // Volume by path; Secret by volume.
    for (const YAML::Node& mount : ContainerOf(workload)["volumeMounts"]) {
      mounts[mount["mountPath"].as<std::string>()] = mount["name"].as<std::string>();
    }
    for (const YAML::Node& volume : PodOf(workload)["volumes"]) {
      if (!volume["secret"].IsDefined()) continue;
      secrets[volume["name"].as<std::string>()] = volume["secret"]["secretName"].as<std::string>();
      EXPECT_EQ(volume["secret"]["defaultMode"].as<int>(), 0440) << "nobody else's to read";
    }
    EXPECT_EQ(PodOf(workload)["securityContext"]["fsGroup"].as<int>(),
              PodOf(workload)["securityContext"]["runAsGroup"].as<int>());
    const v1::SecurityConfig& security = config->security();
    std::vector<std::string> paths = {security.certificate(), security.key(), security.authorities()};
    if (key == std::string("StatefulSet/lodestone-ps")) {
      paths.push_back(security.identities());
      EXPECT_TRUE(security.client_certificates());
      EXPECT_EQ(security.open(), v1::SecurityConfig::REFUSE);
    }
    for (const std::string& path : paths) {
      const size_t slash = path.rfind('/');
      ASSERT_TRUE(mounts.count(path.substr(0, slash))) << path;
      ASSERT_TRUE(secrets.count(mounts[path.substr(0, slash)])) << path;
      EXPECT_THAT(manual, HasSubstr(absl::StrCat("--from-file=", path.substr(slash + 1), "=")));
    }
  }
  const YAML::Node ps = ContainerOf(rendered.Get("StatefulSet/lodestone-ps"));
  for (const char* probe : {"startupProbe", "livenessProbe", "readinessProbe"}) {
    EXPECT_FALSE(ps[probe]["grpc"].IsDefined()) << probe << ": Kubernetes' speak no TLS";
    EXPECT_EQ(ps[probe]["httpGet"]["scheme"].as<std::string>(), "HTTPS") << probe;
    EXPECT_EQ(ps[probe]["httpGet"]["port"].as<std::string>(), "http") << probe;
  }
  EXPECT_EQ(ps["readinessProbe"]["httpGet"]["path"].as<std::string>(), "/readyz");
}

INSTANTIATE_TEST_SUITE_P(All, OverlayTest, testing::Values("cpu", "etcd", "gpu"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lodestone
