#include "common/config/config_check.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/config/checkpoint_to_load.h"
#include "common/config/data_check.h"
#include "common/config/device_name.h"
#include "common/config/field_range.h"
#include "common/config/table_check.h"

namespace lodestone {
namespace {

// Of a field's vector, as of model.embedding_dim.
constexpr uint32_t kFieldDimMax = 4096;

constexpr size_t kZoneBytesMax = 64;

using Problems = std::vector<ConfigProblem>;

// An address to connect to.
void CheckTarget(const std::string& path, const std::string& target, Problems* problems) {
  const absl::StatusOr<HostPort> address = ParseHostPort(target);
  if (absl::StrContains(target, "://")) {
    problems->push_back({path, absl::StrCat("`", target, "` is not host:port: leave what ends in :// away")});
  } else if (!address.ok()) {
    problems->push_back({path, std::string(address.status().message())});
  } else if (IsWildcard(address->host)) {
    problems->push_back({path, absl::StrCat("`", target, "` names no host that one could connect to")});
  } else if (address->port == 0) {
    problems->push_back({path, "port 0 cannot be connected to"});
  }
}

// An address to listen at, or none.
void CheckHttpListen(const std::string& path, const std::string& address, Problems* problems) {
  if (address.empty()) return;
  const absl::StatusOr<HostPort> listen = ParseHostPort(address);
  if (!listen.ok()) problems->push_back({path, std::string(listen.status().message())});
}

void CheckAddresses(const v1::Config& config, Problems* problems) {
  const v1::ServerConfig& server = config.server();
  const absl::StatusOr<HostPort> listen = ParseHostPort(server.listen());
  if (!listen.ok()) problems->push_back({"server.listen", std::string(listen.status().message())});
  CheckHttpListen("server.http_listen", server.http_listen(), problems);
  CheckHttpListen("worker.http_listen", config.worker().http_listen(), problems);
  if (!server.advertise().empty()) {
    const absl::StatusOr<HostPort> advertise = ParseHostPort(server.advertise());
    if (!advertise.ok()) {
      problems->push_back({"server.advertise", std::string(advertise.status().message())});
    } else if (IsWildcard(advertise->host)) {
      problems->push_back(
          {"server.advertise", absl::StrCat("`", server.advertise(), "` names no host that others could connect to")});
    }
  } else if (listen.ok() && IsWildcard(listen->host)) {
    problems->push_back({"server.advertise", absl::StrCat("must be set, because server.listen is `", server.listen(),
                                                          "`, which others cannot connect to")});
  }
  const v1::CoordinatorConfig& coordinator = config.coordinator();
  if (!coordinator.address().empty()) CheckTarget("coordinator.address", coordinator.address(), problems);
  for (int i = 0; i < coordinator.etcd_size(); ++i) {
    CheckTarget(absl::StrCat("coordinator.etcd[", i, "]"), coordinator.etcd(i), problems);
  }
}

void CheckCluster(const v1::Config& config, Problems* problems) {
  const v1::ClusterConfig& cluster = config.cluster();
  if (cluster.name().empty()) problems->push_back({"cluster.name", "must not be empty"});
  if (config.server().index() >= cluster.servers()) {
    problems->push_back({"server.index", absl::StrCat(config.server().index(), " is out of range: cluster.servers is ",
                                                      cluster.servers(), " and the first server is 0")});
  }
  const uint32_t at_start = cluster.servers_at_start();
  if (at_start > cluster.servers() || (at_start > 0 && at_start < cluster.replicas())) {
    problems->push_back(
        {"cluster.servers_at_start",
         absl::StrCat(at_start, " is out of range: at least cluster.replicas, which is ", cluster.replicas(),
                      ", and at most cluster.servers, which is ", cluster.servers(), " (or 0: all of these)")});
  }
  if (config.server().zone().size() > kZoneBytesMax) {
    problems->push_back({"server.zone", absl::StrCat("must be at most ", kZoneBytesMax, " bytes long")});
  }
  if (config.worker().has_index() && config.worker().index() >= cluster.workers()) {
    problems->push_back({"worker.index", absl::StrCat(config.worker().index(), " is out of range: cluster.workers is ",
                                                      cluster.workers(), " and the first worker is 0")});
  }
}

void CheckStorage(const v1::Config& config, Problems* problems) {
  const v1::ClusterConfig::Durability durability = config.cluster().durability();
  const bool has_data_dir = !config.server().data_dir().empty();
  if (!has_data_dir && (durability == v1::ClusterConfig::PROCESS || durability == v1::ClusterConfig::MACHINE)) {
    problems->push_back(
        {"cluster.durability", absl::StrCat(absl::AsciiStrToLower(v1::ClusterConfig::Durability_Name(durability)),
                                            " needs server.data_dir, the folder that the logs are kept in")});
  }
  const bool replicated = config.cluster().replicas() > 1;
  const bool in_memory = durability == v1::ClusterConfig::MEMORY || (!has_data_dir && !replicated);
  if (config.cluster().reads() == v1::ClusterConfig::DURABLE && in_memory) {
    problems->push_back(
        {"cluster.reads", "durable needs server.data_dir or cluster.replicas of 2 or 3: in memory nothing is"});
  }
  if (replicated && (durability == v1::ClusterConfig::MEMORY || durability == v1::ClusterConfig::PROCESS)) {
    problems->push_back(
        {"cluster.durability", "must be replica (or auto), or machine, where cluster.replicas is 2 or 3"});
  }
  if (!replicated && durability == v1::ClusterConfig::REPLICA) {
    problems->push_back({"cluster.durability", "replica needs cluster.replicas of 2 or 3"});
  }
  if (config.cluster().in_sync_min() > config.cluster().replicas()) {
    problems->push_back({"cluster.in_sync_min", absl::StrCat(config.cluster().in_sync_min(),
                                                             " copies are never in sync where cluster.replicas is ",
                                                             config.cluster().replicas(), ": no push would be taken")});
  }
  if (config.cluster().servers() < config.cluster().replicas()) {
    problems->push_back(
        {"cluster.replicas", absl::StrCat(config.cluster().replicas(), " needs as many servers: cluster.servers is ",
                                          config.cluster().servers())});
  }
  if (replicated && !has_data_dir && config.coordinator().etcd().empty()) {
    problems->push_back({"cluster.replicas",
                         "needs server.data_dir (or coordinator.etcd): a coordinator that forgets who took over from "
                         "whom would give the shards back to ps that no longer hold them"});
  }
  if (config.coordinator().rebalance() == v1::CoordinatorConfig::AUTO &&
      config.cluster().shards() > limits::kShardLoadsMax) {
    problems->push_back(
        {"coordinator.rebalance", absl::StrCat("auto needs cluster.shards of at most ", limits::kShardLoadsMax,
                                               ", and there are ", config.cluster().shards())});
  }
  const std::string& load = config.checkpoint().load();
  if (load.empty()) return;
  if (!ParseCheckpointToLoad(load).has_value()) {
    problems->push_back({"checkpoint.load", absl::StrCat("`", load,
                                                         "` is no checkpoint's name: A-Z a-z 0-9 _ . -, and "
                                                         "after it #2, #3, … to go back to it once more")});
  } else if (!has_data_dir && config.checkpoint().dir().empty()) {
    problems->push_back({"checkpoint.dir", "must be set, because checkpoint.load is and server.data_dir is not"});
  }
}

// A rate below 0 is for those who have the servers add what they push (lodestone.assign), not for a model.
void CheckModelOptimizer(const v1::Optimizer& optimizer, const std::string& path, Problems* problems) {
  CheckOptimizer(optimizer, path, problems);
  if (optimizer.learning_rate() < 0 && !optimizer.has_ftrl()) {
    problems->push_back({path + ".learning_rate", "must not be negative: the loss would rise with each step"});
  }
}

void CheckTable(const v1::TableConfig& table, bool is_embedding, const std::string& path, Problems* problems) {
  CheckRanges(table, path, problems);
  CheckModelOptimizer(table.optimizer(), path + ".optimizer", problems);
  CheckInitializer(table.initializer(), is_embedding, path + ".initializer", problems);
  if (is_embedding) {
    if (table.has_broadcast()) problems->push_back({path + ".broadcast", "is for dense tables only"});
  } else {
    if (table.has_admission()) problems->push_back({path + ".admission", "is for embedding tables only"});
    if (table.has_eviction()) problems->push_back({path + ".eviction", "is for embedding tables only"});
  }
}

std::string NameOf(v1::ModelConfig::Type type) { return absl::AsciiStrToLower(v1::ModelConfig::Type_Name(type)); }

// Settings that only some types of model have: with the others they would change nothing.
void CheckTypeSettings(const v1::ModelConfig& model, Problems* problems) {
  using Model = v1::ModelConfig;
  const std::vector<Model::Type> linear = {Model::LINEAR, Model::FM, Model::MF, Model::DEEPFM, Model::WIDEDEEP};
  const std::vector<Model::Type> embedding = {Model::FM,       Model::MF,  Model::DEEPFM,   Model::DLRM,     Model::MLP,
                                              Model::WIDEDEEP, Model::DCN, Model::TWOTOWER, Model::MULTITASK};
  const std::vector<Model::Type> hidden = {Model::MLP, Model::WIDEDEEP, Model::DEEPFM,   Model::DLRM,
                                           Model::DCN, Model::TWOTOWER, Model::MULTITASK};
  const struct {
    const char* name;
    bool is_set;
    std::vector<Model::Type> types;
  } settings[] = {
      {"linear", model.has_linear(), linear},
      {"embedding", model.has_embedding(), embedding},
      {"hidden", !model.hidden().empty(), hidden},
      {"dropout", model.dropout() > 0, hidden},
      {"activation", model.activation() != Model::RELU, hidden},
      {"layer_norm", model.layer_norm(), hidden},
      {"bottom_hidden", !model.bottom_hidden().empty(), {Model::DLRM}},
      {"numeric_pairs", model.numeric_pairs(), {Model::FM, Model::DEEPFM}},
      {"cross", model.has_cross(), {Model::DCN}},
      {"two_tower", model.has_two_tower(), {Model::TWOTOWER}},
      {"multitask", model.has_multitask(), {Model::MULTITASK}},
  };
  for (const auto& setting : settings) {
    if (!setting.is_set || std::ranges::find(setting.types, model.type()) != setting.types.end()) continue;
    std::vector<std::string> names;
    for (const Model::Type type : setting.types) names.push_back(NameOf(type));
    problems->push_back(
        {absl::StrCat("model.", setting.name),
         absl::StrCat("is for model.type: ", absl::StrJoin(names, ", "), "; leave it out for ", NameOf(model.type()))});
  }
}

void CheckModel(const v1::ModelConfig& model, Problems* problems) {
  const bool has_mlp = model.type() == v1::ModelConfig::MLP || model.type() == v1::ModelConfig::DEEPFM ||
                       model.type() == v1::ModelConfig::DLRM || model.type() == v1::ModelConfig::WIDEDEEP ||
                       model.type() == v1::ModelConfig::MULTITASK;
  if (has_mlp && model.hidden().empty()) {
    problems->push_back({"model.hidden", absl::StrCat("must name the widths of the hidden layers for type ",
                                                      NameOf(model.type()), ", such as [256, 128]")});
  }
  const bool multitask = model.type() == v1::ModelConfig::MULTITASK;
  const bool one_loss = model.loss() == v1::ModelConfig::AUTO || model.loss() == v1::ModelConfig::LOGISTIC;
  if (multitask && !one_loss) {
    problems->push_back({"model.loss", "must be logistic (or auto) for type multitask: each of its labels is 0 or 1"});
  }
  const std::map<std::string, float> weights(model.multitask().loss_weights().begin(),
                                             model.multitask().loss_weights().end());
  for (const auto& [label, weight] : weights) {
    if (weight >= 0 && std::isfinite(weight)) continue;
    problems->push_back({absl::StrCat("model.multitask.loss_weights.", label), "must be a number from 0 on"});
  }
  const std::map<std::string, uint32_t> dims(model.embedding_dims().begin(), model.embedding_dims().end());
  for (const auto& [column, dim] : dims) {
    if (dim >= 1 && dim <= kFieldDimMax) continue;
    problems->push_back({absl::StrCat("model.embedding_dims.", column), absl::StrCat("must be 1 to ", kFieldDimMax)});
  }
  CheckRanges(model.optimizer(), "model.optimizer", problems);
  CheckModelOptimizer(model.optimizer(), "model.optimizer", problems);
  CheckTable(model.linear(), true, "model.linear", problems);
  CheckTable(model.embedding(), true, "model.embedding", problems);
  CheckTable(model.dense(), false, "model.dense", problems);
}

// `guarded`: a table has a guard.
void CheckSync(const v1::Consistency::Sync& sync, const std::string& path, bool guarded, uint32_t workers,
               Problems* problems) {
  const uint32_t batches = sync.batches() > 0 ? sync.batches() : workers;
  const bool all = sync.quorum() == 0 || sync.quorum() == batches;
  if (sync.quorum() > batches) {
    problems->push_back({path + ".quorum", absl::StrCat("must not be above the step's ", batches, " batches",
                                                        sync.batches() > 0 ? "" : ", which cluster.workers is")});
  } else if (all && sync.grace_ms() > 0) {
    problems->push_back({path + ".grace_ms", "is for a quorum below batches: otherwise a step waits for them all"});
  } else if (all && sync.late() != v1::Consistency::Sync::DROP) {
    problems->push_back({path + ".late", "is for a quorum below batches: otherwise no gradient is late"});
  }
  if (guarded) {
    problems->push_back({path,
                         "does not go with a guard: a step waits for each of its batches, and a guard refuses some; "
                         "leave guard.norm_max_factor away, or set train.clip_norm instead"});
  }
}

// A gradient is of all tables of a model, and so are steps.
void CheckConsistency(const v1::Config& config, Problems* problems) {
  const v1::TrainConfig& train = config.train();
  struct Group {
    const char* path;
    const v1::TableConfig& table;
  };
  const Group groups[] = {{"model.linear", config.model().linear()},
                          {"model.embedding", config.model().embedding()},
                          {"model.dense", config.model().dense()}};
  const auto consistency_of = [&](const Group& group) -> const v1::Consistency& {
    return group.table.has_consistency() ? group.table.consistency() : train.consistency();
  };
  const auto path_of = [](const Group& group) {
    return group.table.has_consistency() ? absl::StrCat(group.path, ".consistency") : "train.consistency";
  };
  const Group* stepped = nullptr;
  bool guarded = false;
  for (const Group& group : groups) {
    const v1::Consistency& consistency = consistency_of(group);
    guarded = guarded || group.table.guard().norm_max_factor() > 0;
    if (stepped == nullptr && (consistency.has_sync() || consistency.has_tokens())) stepped = &group;
    if (consistency.async().rate() == v1::Consistency::Async::BY_DELAY && train.scale_rate() != v1::TrainConfig::NONE) {
      const std::string path = path_of(group) + ".async.rate";
      if (!problems->empty() && problems->back().path == path) continue;  // Of several groups.
      problems->push_back({path,
                           "divides learning rates by the delay, which grows with the workers, and train.scale_rate by "
                           "the number of workers once more: set one of them"});
    }
  }
  if (stepped == nullptr) return;
  const v1::Consistency& steps = consistency_of(*stepped);
  const std::string path = path_of(*stepped), kind = steps.has_sync() ? "sync" : "tokens";
  for (const Group& group : groups) {
    if (consistency_of(group).SerializeAsString() == steps.SerializeAsString()) continue;
    problems->push_back(
        {path, absl::StrCat("all tables of a model are ", kind, ", with the same numbers, or none is, and ", group.path,
                            " is not: set train.consistency, and none of a table's own")});
    break;
  }
  if (steps.has_sync()) {
    CheckSync(steps.sync(), path + ".sync", guarded, std::max(1u, config.cluster().workers()), problems);
  }
  if (steps.has_sync() && train.sharing() != v1::TrainConfig::RANGES) {
    problems->push_back(
        {path + ".sync",
         "needs train.sharing: ranges, by which the coordinator hands out a step's batches to whichever "
         "workers there are"});
  }
  if (train.scale_rate() != v1::TrainConfig::NONE) {
    problems->push_back({"train.scale_rate", absl::StrCat("must be none where train.consistency is ", kind,
                                                          ": the gradients of a step are averaged, and applied once")});
  }
}

// Where it is known before anything is called that the token could not be shown (credentials.h).
void CheckToken(const v1::Config& config, Problems* problems) {
  const std::string& coordinator = config.coordinator().address();
  if (config.security().token().empty() || !config.security().authorities().empty() || coordinator.empty()) return;
  const absl::StatusOr<HostPort> address = ParseHostPort(coordinator);
  if (!address.ok() || IsLoopback(address->host)) return;
  problems->push_back({"security.authorities",
                       "must be set, because security.token is: without TLS it is not shown to "
                       "another machine, which coordinator.address names"});
}

}  // namespace

std::vector<ConfigProblem> CheckSecurity(const v1::SecurityConfig& security) {
  Problems problems;
  const bool has_certificate = !security.certificate().empty();
  if (has_certificate && security.key().empty()) {
    problems.push_back({"security.key", "must be set: it is the key of security.certificate"});
  } else if (!has_certificate && !security.key().empty()) {
    problems.push_back({"security.certificate", "must be set, because security.key is"});
  }
  if (has_certificate && security.authorities().empty()) {
    problems.push_back({"security.authorities",
                        "must be set, because security.certificate is: processes of one cluster call each other, and "
                        "without it would not expect TLS"});
  }
  if (security.client_certificates() && !has_certificate) {
    problems.push_back({"security.client_certificates", "needs security.certificate: they are shown in TLS only"});
  }
  return problems;
}

std::vector<ConfigProblem> CheckEtcdTls(const v1::EtcdTlsConfig& etcd_tls) {
  Problems problems;
  const bool has_certificate = !etcd_tls.certificate().empty();
  if (has_certificate && etcd_tls.key().empty()) {
    problems.push_back({"coordinator.etcd_tls.key", "must be set: it is the key of coordinator.etcd_tls.certificate"});
  } else if (!has_certificate && !etcd_tls.key().empty()) {
    problems.push_back({"coordinator.etcd_tls.certificate", "must be set, because coordinator.etcd_tls.key is"});
  }
  if (has_certificate && etcd_tls.authorities().empty()) {
    problems.push_back(
        {"coordinator.etcd_tls.authorities",
         "must be set, because coordinator.etcd_tls.certificate is: without it the connection to etcd is "
         "plain, and shows none"});
  }
  return problems;
}

std::vector<ConfigProblem> CheckTraining(const v1::Config& config) {
  Problems problems;
  if (!config.model().has_type()) {
    std::vector<std::string> types;
    for (int type = v1::ModelConfig::Type_MIN; type <= v1::ModelConfig::Type_MAX; ++type) {
      types.push_back(NameOf(static_cast<v1::ModelConfig::Type>(type)));
    }
    problems.push_back({"model.type", absl::StrCat("must name the model: ", absl::StrJoin(types, ", "))});
  } else {
    CheckTypeSettings(config.model(), &problems);
  }
  const v1::DataConfig& data = config.data();
  if (data.train().empty() && data.format() == v1::DataConfig::AUTO && !data.has_generated()) {
    problems.push_back(
        {"data.train", "must name the training files; data.format: generated trains on data made from a seed"});
  }
  return problems;
}

std::vector<ConfigProblem> CheckConfig(const v1::Config& config) {
  Problems problems = CheckSecurity(config.security());
  for (ConfigProblem& problem : CheckEtcdTls(config.coordinator().etcd_tls())) problems.push_back(std::move(problem));
  CheckToken(config, &problems);
  CheckCluster(config, &problems);
  CheckAddresses(config, &problems);
  CheckStorage(config, &problems);
  if (const auto device = ParseDeviceName(config.worker().device()); !device.ok()) {
    problems.push_back({"worker.device", std::string(device.status().message())});
  }
  CheckModel(config.model(), &problems);
  CheckData(config.data(), config.model().type(), &problems);
  CheckConsistency(config, &problems);
  if (config.data().read() == v1::DataConfig::SHARE && config.train().sharing() == v1::TrainConfig::RANGES) {
    problems.push_back({"data.read", "share is for train.sharing: partitions: any range may come to any worker"});
  }
  return problems;
}

}  // namespace lodestone
