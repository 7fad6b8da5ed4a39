// What the tests of configs/kubernetes share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/configs/deployment.h"
#include "yaml-cpp/yaml.h"

namespace lodestone {

// Of a file of configs/kubernetes.
std::string KubernetesPath(const std::string& file);

// Manifests by "Kind/name".
class Manifests {
 public:
  explicit Manifests(const std::vector<YAML::Node>& documents);
  // The test ends if it is not there.
  const YAML::Node& Get(const std::string& key) const;
  const std::map<std::string, YAML::Node>& all() const { return documents_; }

 private:
  std::map<std::string, YAML::Node> documents_;
};

Manifests Base();

// Of a StatefulSet or a Job.
YAML::Node PodOf(const YAML::Node& workload);
YAML::Node LabelsOf(const YAML::Node& workload);
YAML::Node ContainerOf(const YAML::Node& workload);

// The command line of the container in the pod with number `index`, as Kubernetes makes it.
CommandLine FlagsOf(const YAML::Node& workload, int index);

// The overlays by name, and what differs in them.
struct Overlay {
  std::string config;                      // The file in its ConfigMap.
  int servers;                             // Pods of the StatefulSet.
  std::string worker_image = "lodestone";  // Without its tag.
};
std::map<std::string, Overlay> Overlays();

}  // namespace lodestone
