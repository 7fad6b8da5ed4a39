// The manifests of configs/kubernetes agree with each other, with the configuration that they mount and with the image.
// (That they are what Kubernetes takes, only a cluster can say.)
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/host_port.h"
#include "common/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/configs/deployment.h"

namespace lodestone {
namespace {

using testing::Contains;
using testing::HasSubstr;

constexpr char kFolder[] = "configs/kubernetes/";

std::string PathOf(const std::string& file) { return absl::StrCat(kFolder, file); }

// Manifests by "Kind/name".
class Manifests {
 public:
  explicit Manifests(const std::vector<YAML::Node>& documents) {
    for (const YAML::Node& document : documents) {
      const std::string key =
          absl::StrCat(document["kind"].as<std::string>(), "/", document["metadata"]["name"].as<std::string>());
      EXPECT_TRUE(documents_.emplace(key, document).second) << key << " is there twice";
    }
  }
  // The test ends if it is not there.
  const YAML::Node& Get(const std::string& key) const {
    EXPECT_TRUE(documents_.count(key)) << key;
    return documents_.at(key);
  }
  const std::map<std::string, YAML::Node>& all() const { return documents_; }

 private:
  std::map<std::string, YAML::Node> documents_;
};

Manifests Base() {
  std::vector<YAML::Node> documents;
  for (const std::string& file : StringsOf(LoadDocuments(PathOf("base/kustomization.yaml")).at(0)["resources"])) {
    for (const YAML::Node& document : LoadDocuments(PathOf("base/" + file))) documents.push_back(document);
  }
  return Manifests(documents);
}

YAML::Node PodOf(const YAML::Node& workload) { return workload["spec"]["template"]["spec"]; }
YAML::Node LabelsOf(const YAML::Node& workload) { return workload["spec"]["template"]["metadata"]["labels"]; }
YAML::Node ContainerOf(const YAML::Node& workload) { return PodOf(workload)["containers"][0]; }

// The command line of the container in the pod with number `index`, as Kubernetes makes it.
CommandLine FlagsOf(const YAML::Node& workload, int index) {
  const std::map<std::string, std::string> fields = {
      {"metadata.name", absl::StrCat(workload["metadata"]["name"].as<std::string>(), "-", index)},
      {"metadata.labels['apps.kubernetes.io/pod-index']", absl::StrCat(index)},
      {"metadata.annotations['batch.kubernetes.io/job-completion-index']", absl::StrCat(index)}};
  std::map<std::string, std::string> variables;
  for (const YAML::Node& variable : ContainerOf(workload)["env"]) {
    const std::string field = variable["valueFrom"]["fieldRef"]["fieldPath"].as<std::string>();
    EXPECT_TRUE(fields.count(field)) << field;
    variables[variable["name"].as<std::string>()] = fields.at(field);
  }
  return ParseCommandLine(StringsOf(ContainerOf(workload)["args"]), variables);
}

// The overlays, and what differs in them.
struct Overlay {
  std::string config;  // The file in its ConfigMap.
  int servers;         // Pods of the StatefulSet.
};
std::vector<Overlay> Overlays() {
  const YAML::Node etcd = LoadDocuments(PathOf("overlays/etcd/kustomization.yaml")).at(0);
  EXPECT_EQ(etcd["replicas"][0]["name"].as<std::string>(), "lodestone-ps");
  return {{PathOf("base/cluster.yaml"), Base().Get("StatefulSet/lodestone-ps")["spec"]["replicas"].as<int>()},
          {PathOf("overlays/etcd/cluster.yaml"), etcd["replicas"][0]["count"].as<int>()}};
}

TEST(Kubernetes, EveryPsHasARightConfigurationItsIndexAndTheNameThatItsServiceGives) {
  const Manifests base = Base();
  const YAML::Node& set = base.Get("StatefulSet/lodestone-ps");
  const std::string service = set["spec"]["serviceName"].as<std::string>();
  EXPECT_EQ(base.Get("Service/" + service)["spec"]["clusterIP"].as<std::string>(), "None");
  for (const Overlay& overlay : Overlays()) {
    for (int index = 0; index < overlay.servers; ++index) {
      SCOPED_TRACE(absl::StrCat(overlay.config, " ps ", index));
      const absl::StatusOr<v1::Config> config = CheckedConfig(overlay.config, FlagsOf(set, index));
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(config->server().index(), static_cast<uint32_t>(index));
      EXPECT_EQ(config->cluster().servers(), static_cast<uint32_t>(overlay.servers));
      EXPECT_EQ(config->server().advertise(), absl::StrCat("lodestone-ps-", index, ".", service, ":7000"));
      EXPECT_NE(config->coordinator().address().empty(), config->coordinator().etcd().empty());
      if (index == 0 && config->coordinator().etcd().empty()) {
        EXPECT_EQ(config->coordinator().address(), config->server().advertise());
      }
    }
  }
}

TEST(Kubernetes, APsWithoutAnIndexDoesNotStart) {
  // As before Kubernetes 1.28, which knows no label pod-index.
  CommandLine flags = FlagsOf(Base().Get("StatefulSet/lodestone-ps"), 0);
  for (std::string& set : flags.sets) set = absl::StrReplaceAll(set, {{"server.index=0", "server.index="}});
  const absl::StatusOr<v1::Config> config = CheckedConfig(PathOf("base/cluster.yaml"), flags);
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("server.index: has no value"));
}

TEST(Kubernetes, EveryWorkerHasARightConfigurationAndItsIndex) {
  const Manifests base = Base();
  const YAML::Node& job = base.Get("Job/lodestone-worker");
  EXPECT_EQ(job["spec"]["completionMode"].as<std::string>(), "Indexed");
  const int workers = job["spec"]["completions"].as<int>();
  EXPECT_EQ(job["spec"]["parallelism"].as<int>(), workers);
  for (const Overlay& overlay : Overlays()) {
    for (int index = 0; index < workers; ++index) {
      SCOPED_TRACE(absl::StrCat(overlay.config, " worker ", index));
      const absl::StatusOr<v1::Config> config = CheckedConfig(overlay.config, FlagsOf(job, index));
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(config->cluster().workers(), static_cast<uint32_t>(workers));
      EXPECT_TRUE(config->worker().has_index());
      EXPECT_EQ(config->worker().index(), static_cast<uint32_t>(index));
    }
  }
}

TEST(Kubernetes, EveryPortIsTheOneThatThePsListensOn) {
  const Manifests base = Base();
  const YAML::Node& set = base.Get("StatefulSet/lodestone-ps");
  const YAML::Node container = ContainerOf(set);
  const absl::StatusOr<HostPort> listen = ParseHostPort(FlagsOf(set, 0).ValueOf("server.listen"));
  ASSERT_TRUE(listen.ok()) << listen.status();
  EXPECT_TRUE(IsWildcard(listen->host));
  EXPECT_EQ(container["ports"][0]["containerPort"].as<int>(), listen->port);
  const std::string name = container["ports"][0]["name"].as<std::string>();
  const YAML::Node& port = base.Get("Service/lodestone-ps")["spec"]["ports"][0];
  EXPECT_EQ(port["port"].as<int>(), listen->port) << "names of pods lead to pods, past the Service's own port";
  EXPECT_EQ(port["targetPort"].as<std::string>(), name);
  EXPECT_EQ(base.Get("NetworkPolicy/lodestone-ps")["spec"]["ingress"][0]["ports"][0]["port"].as<std::string>(), name);
  for (const char* probe : {"startupProbe", "livenessProbe", "readinessProbe"}) {
    EXPECT_EQ(container[probe]["grpc"]["port"].as<int>(), listen->port) << probe;
  }
  // A ps that waits, or whose disk is full, is not ready, but is not to be killed for it.
  EXPECT_EQ(container["startupProbe"]["grpc"]["service"].as<std::string>(), "lodestone.v1.Admin");
  EXPECT_EQ(container["livenessProbe"]["grpc"]["service"].as<std::string>(), "lodestone.v1.Admin");
  EXPECT_FALSE(container["readinessProbe"]["grpc"]["service"].IsDefined());
}

TEST(Kubernetes, TheHttpPortIsTheOneThatThePsListensOnAndPrometheusIsToldOfIt) {
  const Manifests base = Base();
  const YAML::Node& set = base.Get("StatefulSet/lodestone-ps");
  const YAML::Node container = ContainerOf(set);
  const absl::StatusOr<HostPort> listen = ParseHostPort(FlagsOf(set, 0).ValueOf("server.http_listen"));
  ASSERT_TRUE(listen.ok()) << listen.status();
  EXPECT_TRUE(IsWildcard(listen->host));
  EXPECT_EQ(container["ports"][1]["containerPort"].as<int>(), listen->port);
  const std::string name = container["ports"][1]["name"].as<std::string>();
  const YAML::Node& port = base.Get("Service/lodestone-ps")["spec"]["ports"][1];
  EXPECT_EQ(port["name"].as<std::string>(), name);
  EXPECT_EQ(port["port"].as<int>(), listen->port);
  EXPECT_EQ(port["targetPort"].as<std::string>(), name);
  EXPECT_EQ(base.Get("NetworkPolicy/lodestone-ps")["spec"]["ingress"][0]["ports"][1]["port"].as<std::string>(), name);
  const YAML::Node annotations = set["spec"]["template"]["metadata"]["annotations"];
  EXPECT_EQ(annotations["prometheus.io/scrape"].as<std::string>(), "true");
  EXPECT_EQ(annotations["prometheus.io/port"].as<int>(), listen->port);
  EXPECT_EQ(annotations["prometheus.io/path"].as<std::string>(), "/metrics");
}

TEST(Kubernetes, TheMonitorsSelectWhatTheyAreMeantToAndCallItAsTheAlertsDo) {
  const Manifests base = Base();
  const Manifests monitors(LoadDocuments(PathOf("components/monitoring/monitors.yaml")));
  const YAML::Node& of_ps = monitors.Get("ServiceMonitor/lodestone-ps")["spec"];
  const YAML::Node& service = base.Get("Service/lodestone-ps");
  EXPECT_TRUE(Selects(of_ps["selector"]["matchLabels"], service["metadata"]["labels"]));
  EXPECT_EQ(of_ps["endpoints"][0]["port"].as<std::string>(), service["spec"]["ports"][1]["name"].as<std::string>());
  const YAML::Node& of_workers = monitors.Get("PodMonitor/lodestone-worker")["spec"];
  EXPECT_TRUE(Selects(of_workers["selector"]["matchLabels"], LabelsOf(base.Get("Job/lodestone-worker"))));
  EXPECT_FALSE(Selects(of_workers["selector"]["matchLabels"], LabelsOf(base.Get("StatefulSet/lodestone-ps"))));
  // The operator calls the one's job by its Service, the other's is set.
  std::set<std::string> jobs = {
      service["metadata"]["name"].as<std::string>(),
      of_workers["podMetricsEndpoints"][0]["relabelings"][0]["replacement"].as<std::string>()};
  std::set<std::string> expected;
  for (const YAML::Node& job : LoadDocuments("configs/monitoring/prometheus.yml").at(0)["scrape_configs"]) {
    expected.insert(job["job_name"].as<std::string>());
  }
  EXPECT_EQ(jobs, expected);
}

TEST(Kubernetes, ThePsFindEachOtherBeforeTheyAreReady) {
  const Manifests base = Base();
  EXPECT_EQ(base.Get("StatefulSet/lodestone-ps")["spec"]["podManagementPolicy"].as<std::string>(), "Parallel");
  EXPECT_TRUE(base.Get("Service/lodestone-ps")["spec"]["publishNotReadyAddresses"].as<bool>());
}

TEST(Kubernetes, SelectorsSelectWhatTheyAreMeantTo) {
  const Manifests base = Base();
  const YAML::Node& set = base.Get("StatefulSet/lodestone-ps");
  const YAML::Node ps = LabelsOf(set);
  const YAML::Node worker = LabelsOf(base.Get("Job/lodestone-worker"));
  const YAML::Node affinity =
      PodOf(set)["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0];
  const std::map<std::string, YAML::Node> of_ps = {
      {"StatefulSet", set["spec"]["selector"]["matchLabels"]},
      {"Service", base.Get("Service/lodestone-ps")["spec"]["selector"]},
      {"PodDisruptionBudget", base.Get("PodDisruptionBudget/lodestone-ps")["spec"]["selector"]["matchLabels"]},
      {"podAntiAffinity", affinity["podAffinityTerm"]["labelSelector"]["matchLabels"]},
      {"NetworkPolicy", base.Get("NetworkPolicy/lodestone-ps")["spec"]["podSelector"]["matchLabels"]}};
  for (const auto& [what, selector] : of_ps) {
    EXPECT_TRUE(Selects(selector, ps)) << what;
    EXPECT_FALSE(Selects(selector, worker)) << what;
  }
  const YAML::Node allowed =
      base.Get("NetworkPolicy/lodestone-ps")["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"];
  EXPECT_TRUE(Selects(allowed, ps));
  EXPECT_TRUE(Selects(allowed, worker));
  const YAML::Node& closed = base.Get("NetworkPolicy/lodestone-worker")["spec"];
  EXPECT_TRUE(Selects(closed["podSelector"]["matchLabels"], worker));
  EXPECT_FALSE(Selects(closed["podSelector"]["matchLabels"], ps));
  EXPECT_FALSE(closed["ingress"].IsDefined());
}

TEST(Kubernetes, PodsHaveNoPowersAndWriteOnlyToTheirVolumes) {
  const Manifests base = Base();
  const std::string recipe = ReadProjectFile("configs/container/Containerfile");
  for (const char* key : {"StatefulSet/lodestone-ps", "Job/lodestone-worker"}) {
    SCOPED_TRACE(key);
    const YAML::Node pod = PodOf(base.Get(key));
    EXPECT_TRUE(pod["securityContext"]["runAsNonRoot"].as<bool>());
    EXPECT_THAT(recipe, HasSubstr(absl::StrCat("USER ", pod["securityContext"]["runAsUser"].as<int>(), ":",
                                               pod["securityContext"]["runAsGroup"].as<int>(), "\n")));
    EXPECT_EQ(pod["securityContext"]["seccompProfile"]["type"].as<std::string>(), "RuntimeDefault");
    EXPECT_FALSE(pod["automountServiceAccountToken"].as<bool>());
    const YAML::Node security = pod["containers"][0]["securityContext"];
    EXPECT_FALSE(security["allowPrivilegeEscalation"].as<bool>());
    EXPECT_TRUE(security["readOnlyRootFilesystem"].as<bool>());
    EXPECT_EQ(StringsOf(security["capabilities"]["drop"]), std::vector<std::string>{"ALL"});
    EXPECT_TRUE(pod["terminationGracePeriodSeconds"].IsDefined());
  }
}

TEST(Kubernetes, WhatThePsKeepsIsOnAVolumeOfItsOwnAndTheConfigurationIsMounted) {
  const Manifests base = Base();
  const YAML::Node map = LoadDocuments(PathOf("base/kustomization.yaml")).at(0)["configMapGenerator"][0];
  ASSERT_EQ(StringsOf(map["files"]), std::vector<std::string>{"cluster.yaml"});
  for (const char* key : {"StatefulSet/lodestone-ps", "Job/lodestone-worker"}) {
    SCOPED_TRACE(key);
    const YAML::Node& workload = base.Get(key);
    std::map<std::string, std::string> mounts;  // Volume by path.
    for (const YAML::Node& mount : ContainerOf(workload)["volumeMounts"]) {
      mounts[mount["mountPath"].as<std::string>()] = mount["name"].as<std::string>();
    }
    EXPECT_EQ(FlagsOf(workload, 0).config, "/etc/lodestone/cluster.yaml");
    EXPECT_EQ(mounts["/etc/lodestone"], "config");
    EXPECT_EQ(PodOf(workload)["volumes"][0]["configMap"]["name"].as<std::string>(), map["name"].as<std::string>());
    if (!workload["spec"]["volumeClaimTemplates"].IsDefined()) continue;
    for (const Overlay& overlay : Overlays()) {
      const absl::StatusOr<v1::Config> config = CheckedConfig(overlay.config, FlagsOf(workload, 0));
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(mounts[config->server().data_dir()],
                workload["spec"]["volumeClaimTemplates"][0]["metadata"]["name"].as<std::string>());
    }
  }
}

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
      RunShell(absl::StrCat("rm -rf ", copy, " && cp -rL ", kFolder, " ", copy, " && (cd ", copy, "/overlays/", overlay,
                            " && ", edit, ") && ", command, copy, "/overlays/", overlay),
               &exit_code);
  EXPECT_EQ(exit_code, 0) << text;
  return text;
}

class OverlayTest : public ::testing::TestWithParam<std::string> {};

TEST_P(OverlayTest, IsRenderedWithItsConfigurationItsNumbersAndAnImage) {
  const std::string text = Rendered(GetParam());
  if (text.empty()) GTEST_SKIP() << "neither kubectl nor kustomize is here";
  const Overlay expected = Overlays()[GetParam() == "etcd" ? 1 : 0];
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
    EXPECT_EQ(ContainerOf(rendered.Get(key))["image"].as<std::string>(), absl::StrCat("lodestone:", kVersion)) << key;
  }
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
  const std::string file = Overlays()[GetParam() == "etcd" ? 1 : 0].config;
  const std::string manual = ReadProjectFile(PathOf("components/tls/kustomization.yaml"));
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

INSTANTIATE_TEST_SUITE_P(All, OverlayTest, testing::Values("cpu", "etcd"), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lodestone
