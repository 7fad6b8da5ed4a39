#include "tests/configs/kubernetes.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace lodestone {

std::string KubernetesPath(const std::string& file) { return absl::StrCat("configs/kubernetes/", file); }

Manifests::Manifests(const std::vector<YAML::Node>& documents) {
  for (const YAML::Node& document : documents) {
    const std::string key =
        absl::StrCat(document["kind"].as<std::string>(), "/", document["metadata"]["name"].as<std::string>());
    EXPECT_TRUE(documents_.emplace(key, document).second) << key << " is there twice";
  }
}

const YAML::Node& Manifests::Get(const std::string& key) const {
  EXPECT_TRUE(documents_.count(key)) << key;
  return documents_.at(key);
}

Manifests Base() {
  std::vector<YAML::Node> documents;
  for (const std::string& file :
       StringsOf(LoadDocuments(KubernetesPath("base/kustomization.yaml")).at(0)["resources"])) {
    for (const YAML::Node& document : LoadDocuments(KubernetesPath("base/" + file))) documents.push_back(document);
  }
  return Manifests(documents);
}

YAML::Node PodOf(const YAML::Node& workload) { return workload["spec"]["template"]["spec"]; }
YAML::Node LabelsOf(const YAML::Node& workload) { return workload["spec"]["template"]["metadata"]["labels"]; }
YAML::Node ContainerOf(const YAML::Node& workload) { return PodOf(workload)["containers"][0]; }

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

std::map<std::string, Overlay> Overlays() {
  const YAML::Node etcd = LoadDocuments(KubernetesPath("overlays/etcd/kustomization.yaml")).at(0);
  EXPECT_EQ(etcd["replicas"][0]["name"].as<std::string>(), "lodestone-ps");
  const int servers = Base().Get("StatefulSet/lodestone-ps")["spec"]["replicas"].as<int>();
  return {{"cpu", {KubernetesPath("base/cluster.yaml"), servers}},
          {"etcd", {KubernetesPath("overlays/etcd/cluster.yaml"), etcd["replicas"][0]["count"].as<int>()}},
          {"gpu", {KubernetesPath("overlays/gpu/cluster.yaml"), servers, "lodestone-cuda"}}};
}

}  // namespace lodestone
