// Broken configurations, one kind each: the whole error, with its place, path and suggestion.
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/config.h"
#include "common/config/yaml_reader.h"
#include "common/config/yaml_tree.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// "servers, workers, ..." as errors list them.
std::string FieldsOf(const google::protobuf::Descriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.field_count(); ++i) names.push_back(type.field(i)->name());
  return absl::StrJoin(names, ", ");
}
std::string MembersOf(const google::protobuf::Descriptor& type, const std::string& oneof) {
  std::vector<std::string> names;
  const google::protobuf::OneofDescriptor& members = *type.FindOneofByName(oneof);
  for (int i = 0; i < members.field_count(); ++i) names.push_back(members.field(i)->name());
  return absl::StrJoin(names, ", ");
}
std::string ValuesOf(const google::protobuf::EnumDescriptor& type) {
  std::vector<std::string> names;
  for (int i = 0; i < type.value_count(); ++i) names.push_back(absl::AsciiStrToLower(type.value(i)->name()));
  return absl::StrJoin(names, ", ");
}

// "c0, c1, ..."
std::string ManyColumns(int count) {
  std::vector<std::string> columns;
  for (int i = 0; i < count; ++i) columns.push_back(absl::StrCat("c", i));
  return absl::StrJoin(columns, ", ");
}

struct Broken {
  std::string name;
  std::string yaml;
  std::string error;  // "LINE:COLUMN: PATH: what", without the file before it.
};
void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.yaml; }

std::string ErrorOf(const std::string& yaml, const std::vector<std::string>& sets = {}) {
  const absl::StatusOr<v1::Config> config = ParseConfig(yaml, "c.yaml", sets);
  EXPECT_FALSE(config.ok()) << yaml;
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

const std::vector<Broken>& BrokenFiles() {
  static const auto* const kFiles = new std::vector<Broken>{
      // Names.
      {"UnknownSection", "clutser:\n  servers: 2\n", "1:1: clutser: unknown field (did you mean `cluster`?)"},
      {"UnknownField", "train:\n  epochs: 1\n  batchsize: 2\n",
       "3:3: train.batchsize: unknown field (did you mean `batch_size`?)"},
      {"UnknownFieldOfOptimizer", "model:\n  optimizer:\n    adam: {}\n    lerning_rate: 0.1\n",
       "4:5: model.optimizer.lerning_rate: unknown field (did you mean `learning_rate`?)"},
      {"UnknownMethod", "model: {optimizer: {adagrda: {}}}",
       "1:21: model.optimizer.adagrda: unknown field (did you mean `adagrad`?)"},
      {"FieldInTheWrongCase", "Train:\n  epochs: 1\n", "1:1: Train: unknown field (did you mean `train`?)"},
      {"FieldInTheWrongSection", "train:\n  hidden: [3]\n",
       "2:3: train.hidden: unknown field (did you mean `model.hidden`?)"},
      {"FieldLikeNoOther", "log:\n  qqqqqq: 1\n", "2:3: log.qqqqqq: unknown field (one of: level, json)"},
      {"DashForUnderscore", "train:\n  batch-size: 1\n",
       "2:3: train.batch-size: unknown field (did you mean `batch_size`?)"},
      {"SynonymOfAField", "train:\n  bs: 1\n", "2:3: train.bs: unknown field (did you mean `batch_size`?)"},
      {"SynonymOfAFieldElsewhere", "model:\n  lr: 0.1\n",
       "2:3: model.lr: unknown field (did you mean `model.optimizer.learning_rate`?)"},
      {"FieldBesideAndNotBelow", "model:\n  optimizer: {adam: {learning_rate: 0.1}}\n",
       "2:22: model.optimizer.adam.learning_rate: unknown field (did you mean `model.optimizer.learning_rate`?)"},
      {"TimeWithAnotherUnit", "coordinator:\n  lease_ms: 10 sec\n",
       "2:13: coordinator.lease_ms: expected a time such as 250 (milliseconds), 10s, 5min or 2h, got `10 sec`"},
      {"FieldThatIsNoScalar", "train:\n  [a]: 1\n", "2:3: train: expected the name of a field, got a list"},
      {"FieldThatIsNothing", "train:\n  ~: 1\n", "2:3: train: expected the name of a field, got nothing"},
      {"MergeKey", "model:\n  linear: &x\n    memory_max_bytes: 1\n  dense:\n    <<: *x\n",
       "5:5: model.dense.<<: merge keys are not supported"},
      // Types.
      {"ListForMessage", "cluster: [1]\n",
       "1:10: cluster: expected a mapping with " + FieldsOf(*v1::ClusterConfig::descriptor()) + "; got a list"},
      {"ScalarForMessage", "log: info\n", "1:6: log: expected a mapping with level, json; got `info`"},
      {"ScalarForEmptyMessage", "model:\n  optimizer:\n    sgd: 1\n",
       "3:10: model.optimizer.sgd: expected a mapping (an empty one: {}); got `1`"},
      {"WholeFileIsAScalar", "hello\n",
       "1:1: expected a mapping with " + FieldsOf(*v1::Config::descriptor()) + "; got `hello`"},
      {"MappingForNumber", "cluster:\n  servers: {a: 1}\n", "2:12: cluster.servers: expected one value, got a mapping"},
      {"ListForNumber", "cluster:\n  servers: [1]\n", "2:12: cluster.servers: expected one value, got a list"},
      {"TextForWholeNumber", "cluster:\n  servers: two\n", "2:12: cluster.servers: expected a whole number, got `two`"},
      {"FractionForWholeNumber", "cluster:\n  servers: 2.5\n",
       "2:12: cluster.servers: expected a whole number, got `2.5`"},
      {"StringForWholeNumber", "cluster:\n  servers: \"2\"\n",
       "2:12: cluster.servers: expected a whole number, got the string `2`"},
      {"TaggedStringForWholeNumber", "cluster:\n  servers: !!str 2\n",
       "2:12: cluster.servers: expected a whole number, got the string `2`"},
      {"TextForNumber", "train:\n  epochs: many\n", "2:11: train.epochs: expected a number, got `many`"},
      {"StringForNumber", "train:\n  epochs: '1'\n", "2:11: train.epochs: expected a number, got the string `1`"},
      {"TextForBool", "train:\n  shuffle: maybe\n", "2:12: train.shuffle: expected true or false, got `maybe`"},
      {"NumberForBool", "train:\n  shuffle: 1\n", "2:12: train.shuffle: expected true or false, got `1`"},
      {"NothingForNumber", "cluster:\n  servers:\n", "2:3: cluster.servers: has no value"},
      {"NothingForString", "data:\n  csv:\n    label: ~\n", "3:5: data.csv.label: has no value"},
      {"NothingForList", "data:\n  train:\n", "2:3: data.train: has no value (an empty list is [])"},
      {"NothingInList", "data:\n  train: [a, ~]\n", "2:14: data.train[1]: has no value"},
      {"ListInList", "model:\n  hidden: [[1]]\n", "2:12: model.hidden[0]: expected one value, got a list"},
      {"TextInListOfNumbers", "model:\n  hidden:\n  - 1\n  - x\n",
       "4:5: model.hidden[1]: expected a whole number, got `x`"},
      {"CommasForAList", "model:\n  hidden: 64,32\n",
       "2:11: model.hidden: expected a whole number, got `64,32` (a list is written [a, b])"},
      {"ListForMap", "data:\n  label_map: [1]\n", "2:14: data.label_map: expected a mapping, got a list"},
      {"NothingForMap", "data:\n  label_map:\n", "2:3: data.label_map: has no value (an empty mapping is {})"},
      {"TextInMapOfNumbers", "data:\n  label_map:\n    spam: x\n",
       "3:11: data.label_map.spam: expected a whole number, got `x`"},
      {"UnitWhereNoneIsTaken", "cluster:\n  shards: 64Ki\n",
       "2:11: cluster.shards: expected a whole number, got `64Ki`"},
      {"UnitThatIsNone", "server:\n  memory_max_bytes: 64Mo\n",
       "2:21: server.memory_max_bytes: expected a number of bytes such as 4096 or 64MiB, got `64Mo`"},
      {"UnderscoreInTheWrongPlace", "cluster:\n  shards: 6__4\n",
       "2:11: cluster.shards: expected a whole number, got `6__4`"},
      // Ranges.
      {"BelowRange", "cluster:\n  servers: 0\n", "2:12: cluster.servers: `0` is out of range: must be 1 to 1024"},
      {"AboveRange", "cluster:\n  servers: 1025\n", "2:12: cluster.servers: `1025` is out of range: must be 1 to 1024"},
      {"AboveLargeBound", "coordinator:\n  lease_ms: 1e7\n",
       "2:13: coordinator.lease_ms: `1e7` is out of range: must be 100 to 3600000"},
      {"NegativeForUnsigned", "cluster:\n  seed: -1\n",
       "2:9: cluster.seed: `-1` is out of range: must be 0 to 18446744073709551615"},
      {"AboveUint32", "server:\n  subscribers_max: 4294967296\n",
       "2:20: server.subscribers_max: `4294967296` is out of range: must be 0 to 4294967295"},
      {"AboveUint64", "cluster:\n  seed: 18446744073709551616\n",
       "2:9: cluster.seed: `18446744073709551616` is out of range: must be 0 to 18446744073709551615"},
      {"SizeAboveRange", "server:\n  message_max_bytes: 2GiB\n",
       "2:22: server.message_max_bytes: `2GiB` is out of range: must be 1024 to 1073741824"},
      {"FractionOutOfRange", "model:\n  dropout: 0.96\n",
       "2:12: model.dropout: `0.96` is out of range: must be 0 to 0.95"},
      {"NegativeFraction", "train:\n  epochs: -1\n", "2:11: train.epochs: `-1` is out of range: must be at least 0"},
      {"ElementOutOfRange", "model:\n  hidden: [8, 0]\n",
       "2:15: model.hidden[1]: `0` is out of range: must be 1 to 65536"},
      {"Infinity", "train:\n  epochs: .inf\n", "2:11: train.epochs: expected a finite number, got `.inf`"},
      {"NotANumber", "train:\n  epochs: .nan\n", "2:11: train.epochs: expected a finite number, got `.nan`"},
      {"TooLargeForDouble", "train:\n  epochs: 1e999\n", "2:11: train.epochs: `1e999` is out of range"},
      {"TooLargeForFloat", "model:\n  optimizer:\n    learning_rate: 1e39\n",
       "3:20: model.optimizer.learning_rate: `1e39` is too large for a float"},
      {"TooSmallForFloat", "model:\n  optimizer:\n    adam: {epsilon: 1e-60}\n",
       "3:21: model.optimizer.adam.epsilon: `1e-60` is too small for a float: it would be 0"},
      // Enums.
      {"UnknownEnum", "model:\n  type: deepfn\n", "2:9: model.type: unknown value `deepfn` (did you mean `deepfm`?)"},
      {"UnknownEnumFarFromAll", "data:\n  format: tfrecord\n",
       "2:11: data.format: unknown value `tfrecord` (one of: " + ValuesOf(*v1::DataConfig::Format_descriptor()) + ")"},
      {"NumberForEnum", "log:\n  level: 2\n",
       "2:10: log.level: unknown value `2` (one of: trace, debug, info, warn, error)"},
      {"UnknownEnumInMap", "data:\n  csv:\n    transform: {age: lgo}\n",
       "3:22: data.csv.transform.age: unknown value `lgo` (did you mean `log`?)"},
      // Twice.
      {"FieldTwice", "train:\n  epochs: 1\n  shuffle: no\n  epochs: 2\n", "4:3: train.epochs: set before, at line 2"},
      {"SectionTwice", "log: {}\ntrain: {}\nlog: {}\n", "3:1: log: set before, at line 1"},
      {"KeyOfMapTwice", "data:\n  label_map:\n    1: 0\n    \"1\": 1\n",
       "4:5: data.label_map.1: set before, at line 3"},
      {"TwoOfAOneof", "model:\n  optimizer:\n    adam: {}\n    sgd: {}\n",
       "4:5: model.optimizer.sgd: only one of " + MembersOf(*v1::Optimizer::descriptor(), "kind") +
           " may be set; `adam` is, at line 3"},
      // YAML itself.
      {"Indentation", "train:\n  epochs: 1\n    shuffle: no\n",
       "3:12: illegal map value: is the line indented wrongly, or a `:` not in quotes?"},
      {"ListNotClosed", "model:\n  hidden: [1, 2\n", "3:1: a [ is never closed"},
      {"MapNotClosed", "cluster: {servers: 2\n", "2:1: a { is never closed"},
      {"Tab", "cluster:\n  servers: 1\n\tworkers: 2\n", "3:1: a tab: YAML is indented by spaces"},
      {"TabInTheFirstLevel", "cluster:\n\tservers: 1\n", "2:1: a tab: YAML is indented by spaces"},
      {"QuoteNotClosed", "data:\n  train: \"a\n", "2:3: a quote that opens after this is never closed"},
      {"UnknownEscape", "data:\n  train: \"\\q\"\n", "2:13: unknown escape character: q"},
      {"UnknownAnchor", "model:\n  dense: *x\n", "2:10: the referenced anchor is not defined"},
      {"AnchorInItself", "model: &x\n  dense: *x\n", "2:10: an alias inside the value that it names"},
      {"SecondDocument", "log: {}\n---\ntrain: {}\n", "2:1: the document ends before this (only one document is read)"},
      {"Tag", "log: !thing {}\n", "1:6: tags are not supported: !thing"},
      {"ControlCharacter", "log:\n  level: \x04\n", "2:10: control character 0x04"},
      {"NotUtf8", "log:\n  level: \xe9\n", "2:10: byte 0xe9: the text is not UTF-8"},
      {"TooDeep", "log: " + std::string(40, '[') + std::string(40, ']'),
       "1:37: more than 32 lists and mappings within each other"},
      // What fits together.
      {"ServerIndexBeyondCluster", "cluster: {servers: 2}\nserver:\n  index: 2\n",
       "3:3: server.index: 2 is out of range: cluster.servers is 2 and the first server is 0"},
      {"WorkerIndexBeyondCluster", "worker:\n  index: 7\n",
       "2:3: worker.index: 7 is out of range: cluster.workers is 2 and the first worker is 0"},
      {"LongZone", "server:\n  zone: " + std::string(65, 'z') + "\n",
       "2:3: server.zone: must be at most 64 bytes long"},
      {"EmptyClusterName", "cluster:\n  name: \"\"\n", "2:3: cluster.name: must not be empty"},
      {"ListenWithoutPort", "server:\n  listen: localhost\n",
       "2:3: server.listen: `localhost` is not host:port: it has no port"},
      {"ListenWithBarePort", "server:\n  listen: localhost:70000\n",
       "2:3: server.listen: `localhost:70000` is not host:port: the port is no number from 0 to 65535"},
      {"Ipv6WithoutBrackets", "server:\n  listen: \"::1:7000\"\n",
       "2:3: server.listen: `::1:7000` is not host:port: an IPv6 number stands in brackets, [::1]:7000"},
      {"HttpListenOfTheServer", "server:\n  http_listen: 7080\n",
       "2:3: server.http_listen: `7080` is not host:port: it has no host: put one before the port, as 127.0.0.1:PORT"},
      {"HttpListenOfTheWorker", "worker:\n  http_listen: nowhere\n",
       "2:3: worker.http_listen: `nowhere` is not host:port: it has no port"},
      {"AdvertiseWildcard", "server:\n  advertise: 0.0.0.0:7000\n",
       "2:3: server.advertise: `0.0.0.0:7000` names no host that others could connect to"},
      {"AdvertiseMissing", "server:\n  listen: \"[::]:7000\"\n",
       "1:1: server.advertise: must be set, because server.listen is `[::]:7000`, which others cannot connect to"},
      {"SyncWithPartitions", "train: {consistency: {sync: {}}}\n",
       "1:23: train.consistency.sync: needs train.sharing: ranges, by which the coordinator hands out a step's batches "
       "to "
       "whichever workers there are"},
      {"SyncOfSomeTables", "train: {sharing: ranges}\nmodel: {dense: {consistency: {sync: {}}}}\n",
       "2:17: model.dense.consistency: all tables of a model are sync, with the same numbers, or none is, and "
       "model.linear is not: set train.consistency, and none of a table's own"},
      {"TokensOfSomeTables", "train: {consistency: {tokens: {}}}\nmodel: {linear: {consistency: {bounded: {}}}}\n",
       "1:9: train.consistency: all tables of a model are tokens, with the same numbers, or none is, and model.linear "
       "is "
       "not: set train.consistency, and none of a table's own"},
      {"QuorumAboveTheWorkers", "cluster: {workers: 2}\ntrain: {sharing: ranges, consistency: {sync: {quorum: 3}}}\n",
       "2:47: train.consistency.sync.quorum: must not be above the step's 2 batches, which cluster.workers is"},
      {"GraceWithoutAQuorum", "train: {sharing: ranges, consistency: {sync: {batches: 4, grace_ms: 5}}}\n",
       "1:59: train.consistency.sync.grace_ms: is for a quorum below batches: otherwise a step waits for them all"},
      {"LateWithoutAQuorum", "train: {sharing: ranges, consistency: {sync: {batches: 4, late: carry}}}\n",
       "1:59: train.consistency.sync.late: is for a quorum below batches: otherwise no gradient is late"},
      {"SyncWithAGuard",
       "train: {sharing: ranges, consistency: {sync: {}}}\nmodel: {linear: {guard: {norm_max_factor: 10}}}\n",
       "1:40: train.consistency.sync: does not go with a guard: a step waits for each of its batches, and a guard "
       "refuses some; leave guard.norm_max_factor away, or set train.clip_norm instead"},
      {"SyncWithAScaledRate", "train: {sharing: ranges, scale_rate: sqrt, consistency: {sync: {}}}\n",
       "1:26: train.scale_rate: must be none where train.consistency is sync: the gradients of a step are averaged, "
       "and "
       "applied once"},
      {"RateByDelayAndByWorkers",
       "train: {scale_rate: sqrt}\nmodel: {dense: {consistency: {async: {rate: by_delay}}}}\n",
       "2:39: model.dense.consistency.async.rate: divides learning rates by the delay, which grows with the workers, "
       "and "
       "train.scale_rate by the number of workers once more: set one of them"},
      {"RateByDelayOfAllTablesAndByWorkers", "train: {scale_rate: sqrt, consistency: {async: {rate: by_delay}}}\n",
       "1:49: train.consistency.async.rate: divides learning rates by the delay, which grows with the workers, and "
       "train.scale_rate by the number of workers once more: set one of them"},
      {"FollowersWithoutAFolder", "cluster: {replicas: 2}\n",
       "1:11: cluster.replicas: needs server.data_dir (or coordinator.etcd): a coordinator that forgets who took over "
       "from whom would give the shards back to ps that no longer hold them"},
      {"FollowersOfNobody", "cluster: {replicas: 2, servers: 1}\nserver: {data_dir: d}\n",
       "1:11: cluster.replicas: 2 needs as many servers: cluster.servers is 1"},
      {"MoreCopiesThanServers", "cluster: {replicas: 3, servers: 2}\nserver: {data_dir: d}\n",
       "1:11: cluster.replicas: 3 needs as many servers: cluster.servers is 2"},
      {"FollowersAndAnotherDurability", "cluster: {replicas: 2, durability: process}\nserver: {data_dir: d}\n",
       "1:24: cluster.durability: must be replica (or auto), or machine, where cluster.replicas is 2 or 3"},
      {"ReplicaWithoutFollowers", "cluster: {durability: replica}\n",
       "1:11: cluster.durability: replica needs cluster.replicas of 2 or 3"},
      {"DurableWithoutAFolder", "cluster: {durability: machine}\n",
       "1:11: cluster.durability: machine needs server.data_dir, the folder that the logs are kept in"},
      {"CheckpointThatCannotBe", "server: {data_dir: d}\ncheckpoint: {load: ../other}\n",
       "2:14: checkpoint.load: `../other` is no checkpoint's name: A-Z a-z 0-9 _ . -, and after it #2, #3, … to go "
       "back to it once more"},
      {"CheckpointForTheFirstTime", "server: {data_dir: d}\ncheckpoint: {load: good#1}\n",
       "2:14: checkpoint.load: `good#1` is no checkpoint's name: A-Z a-z 0-9 _ . -, and after it #2, #3, … to go back "
       "to it once more"},
      {"CheckpointsNowhere", "checkpoint: {load: good}\n",
       "1:1: checkpoint.dir: must be set, because checkpoint.load is and server.data_dir is not"},
      {"TokenWithoutTls", "coordinator: {address: \"ps0:7000\"}\nsecurity: {token: t}\n",
       "2:1: security.authorities: must be set, because security.token is: without TLS it is not shown to another "
       "machine, which coordinator.address names"},
      {"CertificateWithoutKey", "security: {certificate: c, authorities: a}\n",
       "1:1: security.key: must be set: it is the key of security.certificate"},
      {"ClientCertificatesWithoutTls", "security: {client_certificates: true}\n",
       "1:12: security.client_certificates: needs security.certificate: they are shown in TLS only"},
      {"CoordinatorPortZero", "coordinator: {address: \"ps0:0\"}\n",
       "1:15: coordinator.address: port 0 cannot be connected to"},
      {"CoordinatorWildcard", "coordinator: {address: \":7000\"}\n",
       "1:15: coordinator.address: `:7000` names no host that one could connect to"},
      {"EtcdCertificateWithoutKey", "coordinator: {etcd_tls: {certificate: c, authorities: a}}\n",
       "1:15: coordinator.etcd_tls.key: must be set: it is the key of coordinator.etcd_tls.certificate"},
      {"EtcdKeyWithoutCertificate", "coordinator: {etcd_tls: {key: k}}\n",
       "1:15: coordinator.etcd_tls.certificate: must be set, because coordinator.etcd_tls.key is"},
      {"EtcdCertificateWithoutAuthorities", "coordinator: {etcd_tls: {certificate: c, key: k}}\n",
       "1:15: coordinator.etcd_tls.authorities: must be set, because coordinator.etcd_tls.certificate is: without it "
       "the "
       "connection to etcd is plain, and shows none"},
      {"MoreCopiesInSyncThanThereAre", "cluster: {in_sync_min: 2}\n",
       "1:11: cluster.in_sync_min: 2 copies are never in sync where cluster.replicas is 1: no push would be taken"},
      {"MoreServersAtStartThanPlaces", "cluster: {servers: 3, servers_at_start: 4}\n",
       "1:23: cluster.servers_at_start: 4 is out of range: at least cluster.replicas, which is 1, and at most "
       "cluster.servers, which is 3 (or 0: all of these)"},
      {"FewerServersAtStartThanReplicas",
       "cluster: {servers: 3, servers_at_start: 1, replicas: 2}\nserver: {data_dir: d}\n",
       "1:23: cluster.servers_at_start: 1 is out of range: at least cluster.replicas, which is 2, and at most "
       "cluster.servers, which is 3 (or 0: all of these)"},
      {"RebalanceAutoWithTooManyShards", "cluster: {shards: 8193}\ncoordinator: {rebalance: auto}\n",
       "2:15: coordinator.rebalance: auto needs cluster.shards of at most 8192, and there are 8193"},
      {"EtcdAsAUrl", "coordinator: {etcd: [\"http://etcd0:2379\"]}\n",
       "1:22: coordinator.etcd[0]: `http://etcd0:2379` is not host:port: leave what ends in :// away"},
      {"EtcdPortZero", "coordinator: {etcd: [\"etcd0:2379\", \"etcd1:0\"]}\n",
       "1:36: coordinator.etcd[1]: port 0 cannot be connected to"},
      {"NoHiddenLayers", "model:\n  type: mlp\n",
       "1:1: model.hidden: must name the widths of the hidden layers for type mlp, such as [256, 128]"},
      {"CsvForAnotherFormat", "data:\n  format: libsvm\n  csv: {label: \"0\"}\n",
       "3:3: data.csv: is for data.format csv only, and that is libsvm"},
      {"GeneratedForAnotherFormat", "data:\n  format: csv\n  generated: {}\n",
       "3:3: data.generated: is for data.format generated only, and that is csv"},
      {"LabelsForAnotherFormat", "data:\n  format: csv\n  train_labels: x\n",
       "3:3: data.train_labels: is for data.format idx only, and that is csv"},
      {"ColumnWithSeveralCategoriesAndOne", "data:\n  csv:\n    categorical: [tags]\n    multi: {tags: {}}\n",
       "4:13: data.csv.multi.tags: column `tags` is in data.csv.categorical[0] already"},
      {"NoSeparator", "data:\n  csv:\n    multi:\n      tags: {separator: ''}\n",
       "4:14: data.csv.multi.tags.separator: must not be empty"},
      {"NoValues", "data:\n  csv:\n    multi:\n      tags: {values_max: 0}\n",
       "4:26: data.csv.multi.tags.values_max: `0` is out of range: must be 1 to 65536"},
      {"UnknownPooling", "data:\n  csv:\n    multi:\n      tags: {pooling: men}\n",
       "4:23: data.csv.multi.tags.pooling: unknown value `men` (did you mean `mean`?)"},
      {"ShareOfRanges", "data: {read: share}\ntrain: {sharing: ranges}\n",
       "1:8: data.read: share is for train.sharing: partitions: any range may come to any worker"},
      {"ShareOfImages", "data:\n  format: idx\n  read: share\n",
       "3:3: data.read: share is for text, Parquet and npy, not for idx"},
      {"ShareWithoutTestFiles", "data:\n  test_share: 0.1\n  read: share\n",
       "3:3: data.read: share cannot go with data.test_share: name test files in data.test"},
      {"FilesForGenerated", "data:\n  format: generated\n  train: x\n",
       "3:3: data.train: must be empty where data.format is generated"},
      {"EmptyLabel", "model: {type: linear}\ndata:\n  csv:\n    label: ''\n",
       "4:5: data.csv.label: must not be empty, but with model.type: twotower"},
      {"LabelsOfAnotherModel", "model: {type: linear}\ndata:\n  csv:\n    labels: [a, b]\n",
       "4:5: data.csv.labels: is for model.type: multitask; other models have one label, data.csv.label"},
      {"LabelsAndALabel", "model: {type: multitask, hidden: [4]}\ndata:\n  csv:\n    labels: [a, b]\n    label: c\n",
       "5:5: data.csv.label: must not be set beside data.csv.labels, which names all labels"},
      {"LabelTwice", "model: {type: multitask, hidden: [4]}\ndata:\n  csv:\n    labels: [a, b, a]\n",
       "4:20: data.csv.labels[2]: column `a` is in data.csv.labels[0] already"},
      {"OneOfSeveralLabels", "model: {type: multitask, hidden: [4]}\ndata:\n  csv:\n    labels: [a-1]\n",
       "4:5: data.csv.labels: names one column: take data.csv.label, or name several"},
      {"MoreLabelsThanAModelTakes",
       absl::StrCat("model: {type: multitask, hidden: [4]}\ndata:\n  csv:\n    labels: [", ManyColumns(65), "]\n"),
       "4:5: data.csv.labels: names 65 columns, and a model takes 64 labels at most"},
      {"LabelsThatAreFeatures",
       "model: {type: multitask, hidden: [4]}\ndata:\n  csv:\n    labels: [a, b]\n    numeric: [b]\n",
       "5:15: data.csv.numeric[0]: column `b` is in data.csv.labels[1] already"},
      {"LossOfSeveralLabels",
       "model:\n  type: multitask\n  hidden: [4]\n  loss: squared\ndata: {csv: {labels: [a, b]}}\n",
       "4:3: model.loss: must be logistic (or auto) for type multitask: each of its labels is 0 or 1"},
      {"OneExpert", "model:\n  multitask: {experts: 1}\n",
       "2:24: model.multitask.experts: `1` is out of range: must be 2 to 256"},
      {"NegativeLossWeight",
       "model:\n  type: multitask\n  hidden: [4]\n  multitask: {loss_weights: {a: -1}}\ndata: {csv: {labels: [a, "
       "b]}}\n",
       "4:30: model.multitask.loss_weights.a: must be a number from 0 on"},
      {"NoWidthOfAField", "model:\n  type: dcn\n  embedding_dims: {user: 8, item: 0}\n",
       "3:29: model.embedding_dims.item: must be 1 to 4096"},
      {"AgeWithoutADate", "data:\n  csv:\n    datetime:\n      born: {age_days: NUMBER}\n",
       "4:14: data.csv.datetime.born.age_days: needs age_at, the date that ages are counted to"},
      {"TimeWithTwoRoles", "data:\n  csv:\n    numeric: [born]\n    datetime: {born: {}}\n",
       "4:16: data.csv.datetime.born: column `born` is in data.csv.numeric[0] already"},
      {"EmptyFileName", "data:\n  train: [a, \"\"]\n", "2:14: data.train[1]: must not be empty"},
      {"ColumnWithTwoRoles", "data:\n  csv:\n    numeric: [age, pay]\n    categorical: [town, pay]\n",
       "4:25: data.csv.categorical[1]: column `pay` is in data.csv.numeric[1] already"},
      {"XavierForRows", "model:\n  embedding:\n    initializer: {xavier: {}}\n",
       "3:19: model.embedding.initializer.xavier: is for dense tables only: the rows of an embedding have no fan-in"},
      {"ZeroColumnsForDense", "model:\n  dense:\n    initializer: {zero_columns: 1}\n",
       "3:19: model.dense.initializer.zero_columns: is about the rows of embeddings; leave it out"},
      {"AdmissionForDense", "model:\n  dense:\n    admission: {count_min: 2}\n",
       "3:5: model.dense.admission: is for embedding tables only"},
      {"EvictionForDense", "model:\n  dense:\n    eviction:\n",
       "3:5: model.dense.eviction: is for embedding tables only"},
      {"BroadcastForRows", "model:\n  linear:\n    broadcast:\n",
       "3:5: model.linear.broadcast: is for dense tables only"},
      {"UniformUpsideDown", "model: {dense: {initializer: {uniform: {low: 1}}}}\n",
       "1:41: model.dense.initializer.uniform.low: must not be above high"},
      {"EpsilonZero", "model:\n  optimizer:\n    adam: {epsilon: 0}\n",
       "3:21: model.optimizer.adam.epsilon: `0` is out of range: must be above 0"},
      {"BetaOne", "model:\n  dense:\n    optimizer:\n      adamw: {beta2: 1}\n",
       "4:22: model.dense.optimizer.adamw.beta2: `1` is out of range: must be at least 0 and below 1"},
      {"AdagradDividingByZero", "model:\n  optimizer:\n    adagrad: {epsilon: 0}\n",
       "3:15: model.optimizer.adagrad.epsilon: must be above 0 where initial_accumulator is 0"},
      {"RateGoingBackwards", "model:\n  optimizer:\n    learning_rate: -0.1\n",
       "3:5: model.optimizer.learning_rate: must not be negative: the loss would rise with each step"},
      {"RateOfATableGoingBackwards", "model:\n  dense:\n    optimizer: {learning_rate: -0.1}\n",
       "3:17: model.dense.optimizer.learning_rate: must not be negative: the loss would rise with each step"},
      {"NoDevice", "worker:\n  device: gpu\n",
       "2:3: worker.device: `gpu` is none of auto, cpu, cuda and cuda:N, where N counts from 0"},
      {"NoDevicesNumber", "worker:\n  device: cuda:x\n",
       "2:3: worker.device: `cuda:x` is none of auto, cpu, cuda and cuda:N, where N counts from 0"},
      {"FtrlGoingBackwards", "model:\n  optimizer:\n    ftrl:\n    learning_rate: 0\n",
       "4:5: model.optimizer.learning_rate: must be above 0 for ftrl, which divides by it"},
  };
  return *kFiles;
}

class ABrokenFile : public testing::TestWithParam<Broken> {};

TEST_P(ABrokenFile, IsRefusedWithPlacePathAndReason) {
  EXPECT_EQ(ErrorOf(GetParam().yaml), absl::StrCat("c.yaml:", GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(Config, ABrokenFile, testing::ValuesIn(BrokenFiles()),
                         [](const auto& info) { return info.param.name; });

struct BrokenSet {
  std::string name;
  std::string set;
  std::string error;
};
void PrintTo(const BrokenSet& broken, std::ostream* out) { *out << broken.set; }

class ABrokenOverride : public testing::TestWithParam<BrokenSet> {};

TEST_P(ABrokenOverride, IsRefusedWithPathAndReason) { EXPECT_EQ(ErrorOf("", {GetParam().set}), GetParam().error); }

INSTANTIATE_TEST_SUITE_P(
    Config, ABrokenOverride,
    testing::Values(
        BrokenSet{"NoValue", "train.epochs", "--set train.epochs: expected PATH=VALUE"},
        BrokenSet{"NoPath", "=3", "--set =3: expected PATH=VALUE"},
        BrokenSet{"UnknownField", "train.epoch=3", "--set train.epoch: unknown field (did you mean `epochs`?)"},
        BrokenSet{"UnknownSection", "tarin.epochs=3", "--set tarin.epochs: unknown field (did you mean `train`?)"},
        BrokenSet{"EmptyStep", "train..epochs=3",
                  "--set train..epochs: unknown field (one of: " + FieldsOf(*v1::TrainConfig::descriptor()) + ")"},
        BrokenSet{"NotAPath", "train.epochs.x=3",
                  "--set train.epochs.x: `train.epochs` has no fields; set it as a whole"},
        BrokenSet{"ElementOfAList", "data.train.0=a",
                  "--set data.train.0: `data.train` has no fields; set it as a whole"},
        BrokenSet{"WrongType", "train.epochs=x", "--set train.epochs: expected a number, got `x`"},
        BrokenSet{"OutOfRange", "cluster.servers=0", "--set cluster.servers: `0` is out of range: must be 1 to 1024"},
        BrokenSet{"NothingForNumber", "cluster.servers=", "--set cluster.servers: has no value"},
        BrokenSet{"UnknownEnum", "model.type=mpl", "--set model.type: unknown value `mpl` (did you mean `mlp`?)"},
        BrokenSet{"ScalarForMessage", "log=info", "--set log: expected a mapping with level, json; got `info`"},
        BrokenSet{"WithinTheValue", "model.optimizer={adam: {beta: 1}}",
                  "--set model.optimizer: model.optimizer.adam.beta: unknown field (did you mean `beta1`?)"},
        BrokenSet{"YamlOfTheValue", "model.hidden=[1", "--set model.hidden: a [ is never closed"},
        BrokenSet{"EntryOfAMap", "data.label_map.a.b=x", "--set data.label_map.a.b: expected a whole number, got `x`"},
        BrokenSet{"NotUtf8", "data.train=\xff", "--set data.train: `\xff` is not UTF-8"},
        BrokenSet{"WhatDoesNotFit", "server.index=9",
                  "--set server.index: 9 is out of range: cluster.servers is 2 and the first server is 0"}),
    [](const auto& info) { return info.param.name; });

TEST(ConfigErrors, AreReportedTogetherInOrder) {
  EXPECT_EQ(ErrorOf("cluster:\n  servers: 0\nlog:\n  jsn: true\ntrain:\n  epochs: x\n", {"model.typ=fm"}),
            "c.yaml:2:12: cluster.servers: `0` is out of range: must be 1 to 1024\n"
            "c.yaml:4:3: log.jsn: unknown field (did you mean `json`?)\n"
            "c.yaml:6:11: train.epochs: expected a number, got `x`\n"
            "--set model.typ: unknown field (did you mean `type`?)");
}

TEST(ConfigErrors, AreCountedBeyondTwenty) {
  std::string yaml = "model:\n  hidden:\n";
  for (int i = 0; i < 25; ++i) yaml += "  - x\n";
  const std::string error = ErrorOf(yaml);
  EXPECT_THAT(error, HasSubstr("model.hidden[19]:"));
  EXPECT_THAT(error, Not(HasSubstr("model.hidden[20]:")));
  EXPECT_THAT(error, EndsWith("\n... and 5 more"));
}

TEST(ConfigErrors, StayShortForLongTexts) {
  EXPECT_LT(ErrorOf("train:\n  epochs: " + std::string(100'000, 'x')).size(), 200u);
  EXPECT_LT(ErrorOf("? " + std::string(100'000, 'x') + "\n: 1\n").size(), 400u);
}

TEST(ConfigErrors, NameAnAliasWhereItsValueIsWritten) {
  EXPECT_EQ(ErrorOf("model:\n  linear: {optimizer: &o {learning_rat: 1}}\n  dense: {optimizer: *o}\n"),
            "c.yaml:2:27: model.linear.optimizer.learning_rat: unknown field (did you mean `learning_rate`?)\n"
            "c.yaml:2:27: model.dense.optimizer.learning_rat: unknown field (did you mean `learning_rate`?)");
}

TEST(ConfigErrors, EndATextThatIsTooLong) {
  EXPECT_THAT(ErrorOf(std::string(kYamlBytesMax + 1, ' ')), StartsWith("c.yaml:1:1: the text has 1048577 bytes"));
}

TEST(ConfigErrors, EndATextOfTooManyValues) {
  std::string yaml = "data:\n  train: [";
  for (size_t i = 0; i <= kYamlNodesMax; ++i) yaml += "a,";
  EXPECT_THAT(ErrorOf(yaml + "]\n"), HasSubstr(": more than 100000 values"));
}

// What a schema that contains itself makes of `yaml`.
std::string RecursiveErrorOf(const std::string& yaml) {
  google::protobuf::DescriptorProto message;
  YamlReader reader(&message);
  reader.Read(yaml, "r.yaml");
  EXPECT_FALSE(reader.status().ok());
  return std::string(reader.status().message());
}

TEST(YamlReader, EndsAliasesThatExpandToTooMuch) {
  std::string yaml = "nested_type:\n- &a0 {name: x}\n";
  for (int i = 1; i < 12; ++i) {  // Ten of the one before: 10^11 messages.
    std::string aliases;
    for (int j = 0; j < 10; ++j) absl::StrAppend(&aliases, "*a", i - 1, ", ");
    absl::StrAppend(&yaml, "- &a", i, " {nested_type: [", aliases, "]}\n");
  }
  EXPECT_THAT(RecursiveErrorOf(yaml), AllOf(StartsWith("r.yaml:"), EndsWith(": aliases expand to too much")));
}

TEST(YamlReader, EndsAliasesThatNestTooDeep) {
  std::string yaml = "nested_type:\n- &a0 {name: x}\n";
  for (int i = 1; i < 1000; ++i) absl::StrAppend(&yaml, "- &a", i, " {nested_type: [*a", i - 1, "]}\n");
  EXPECT_THAT(RecursiveErrorOf(yaml), AllOf(StartsWith("r.yaml:"), EndsWith(": aliases expand to too much")));
}

TEST(YamlReader, FindsAKeyThatALargeMapHasTwice) {
  std::string yaml = "data:\n  label_map:\n";
  for (int i = 0; i < 40'000; ++i) absl::StrAppend(&yaml, "    k", i, ": 1\n");
  EXPECT_THAT(ErrorOf(yaml + "    k0: 2\n"), EndsWith("data.label_map.k0: set before, at line 3"));
}

TEST(ConfigErrors, NameAFileThatCannotBeRead) {
  const absl::Status missing = LoadConfig("no/such/file.yaml").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(missing.message(), "no/such/file.yaml: cannot be read: No such file or directory");
  const absl::Status directory = LoadConfig("/").status();
  EXPECT_EQ(directory.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(directory.message()), HasSubstr("cannot be read"));
}

TEST(ConfigErrors, OfAMessageNameThePathAlone) {
  v1::Config config;
  EXPECT_TRUE(ValidateConfig(config).ok());
  config.mutable_server()->set_listen("x");
  config.mutable_cluster()->clear_name();
  config.mutable_model()->set_type(v1::ModelConfig::DLRM);
  EXPECT_EQ(std::string(ValidateConfig(config).message()),
            "server.listen: `x` is not host:port: it has no port\n"
            "model.hidden: must name the widths of the hidden layers for type dlrm, such as [256, 128]");
}

}  // namespace
}  // namespace lodestone
