// The manifests of configs/kubernetes agree with each other, with the configuration that they mount and with the image.
// (That they are what Kubernetes takes, only a cluster can say.)
#include "tests/configs/kubernetes.h"

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/host_port.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/configs/deployment.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

TEST(Kubernetes, EveryPsHasARightConfigurationItsIndexAndTheNameThatItsServiceGives) {
  const Manifests base = Base();
  const YAML::Node& set = base.Get("StatefulSet/lodestone-ps");
  const std::string service = set["spec"]["serviceName"].as<std::string>();
  EXPECT_EQ(base.Get("Service/" + service)["spec"]["clusterIP"].as<std::string>(), "None");
  for (const auto& [name, overlay] : Overlays()) {
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
  const absl::StatusOr<v1::Config> config = CheckedConfig(KubernetesPath("base/cluster.yaml"), flags);
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("server.index: has no value"));
}

TEST(Kubernetes, EveryWorkerHasARightConfigurationAndItsIndex) {
  const Manifests base = Base();
  const YAML::Node& job = base.Get("Job/lodestone-worker");
  EXPECT_EQ(job["spec"]["completionMode"].as<std::string>(), "Indexed");
  const int workers = job["spec"]["completions"].as<int>();
  EXPECT_EQ(job["spec"]["parallelism"].as<int>(), workers);
  for (const auto& [name, overlay] : Overlays()) {
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
  const Manifests monitors(LoadDocuments(KubernetesPath("components/monitoring/monitors.yaml")));
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
  const YAML::Node map = LoadDocuments(KubernetesPath("base/kustomization.yaml")).at(0)["configMapGenerator"][0];
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
    for (const auto& [name, overlay] : Overlays()) {
      const absl::StatusOr<v1::Config> config = CheckedConfig(overlay.config, FlagsOf(workload, 0));
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(mounts[config->server().data_dir()],
                workload["spec"]["volumeClaimTemplates"][0]["metadata"]["name"].as<std::string>());
    }
  }
}

}  // namespace
}  // namespace lodestone
