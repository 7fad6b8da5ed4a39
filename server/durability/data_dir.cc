#include "server/durability/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/nonce.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/io/boot_id.h"
#include "common/io/record_file.h"
#include "common/telemetry/log.h"
#include "common/telemetry/metrics.h"
#include "server/optimizer/arithmetic.h"
#include "server/wal/log_reader.h"
#include "server/wal/segment_name.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kFormat = 1;
constexpr uint64_t kFirstLineage = 1;

CounterMetric unlike_metric("lodestone_ps_storage_unlike_starts_total",
                            "Starts of the ps in a folder that was written with arithmetic that gives other bits.");

}  // namespace

v1::ClusterConfig::Durability DurabilityOf(const v1::Config& config) {
  const v1::ClusterConfig::Durability configured = config.cluster().durability();
  if (configured != v1::ClusterConfig::AUTO) return configured;
  if (config.cluster().replicas() > 1) return v1::ClusterConfig::REPLICA;
  return config.server().data_dir().empty() ? v1::ClusterConfig::MEMORY : v1::ClusterConfig::PROCESS;
}

DataDir::DataDir(const v1::Config& config)
    : config_(config), durability_(DurabilityOf(config)), checkpoint_dir_(config.checkpoint().dir()) {
  const std::string& data_dir = config.server().data_dir();
  if (data_dir.empty()) return;
  path_ = absl::StrCat(data_dir, "/ps-", config.server().index());
  if (checkpoint_dir_.empty()) checkpoint_dir_ = data_dir + "/checkpoints";
}

absl::StatusOr<std::unique_ptr<DataDir>> DataDir::Open(const v1::Config& config) {
  std::unique_ptr<DataDir> dir(new DataDir(config));
  if (!dir->path_.empty()) {
    LODESTONE_RETURN_IF_ERROR(dir->Lock());
    LODESTONE_RETURN_IF_ERROR(dir->LoadState());
  }
  return dir;
}

absl::Status DataDir::Lock() {
  LODESTONE_RETURN_IF_ERROR(MakeFolders(log_dir()));
  LODESTONE_ASSIGN_OR_RETURN(File lock, File::Open(path_ + "/lock", O_RDWR | O_CREAT));
  if (flock(lock.fd(), LOCK_EX | LOCK_NB) != 0) {
    return absl::UnavailableError(absl::StrCat(
        "another process holds ", lock.path(), " (",
        errno == EWOULDBLOCK ? "a ps that uses the same server.data_dir and index: stop it, or set another server.index"
                             : "the file cannot be locked",
        ")"));
  }
  lock_ = std::move(lock);
  return absl::OkStatus();
}

absl::Status DataDir::LoadState() {
  const std::string path = path_ + "/state";
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(path_));
  if (std::find(names.begin(), names.end(), "state") == names.end()) {
    state_.set_lineage(kFirstLineage);
    state_.set_member_token(DrawNonce());
    state_.set_folder(DrawNonce());
    return SaveState();
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RecordReader> reader, RecordReader::Open(path));
  ByteView payload;
  if (reader->Next(&state_, &payload) != RecordReader::Outcome::kRecord) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: ", reader->error().message(),
                                            "; without it, a checkpoint can be loaded into an empty server.data_dir"));
  }
  const auto differs = [&path](absl::string_view what, auto there, auto here) {
    return absl::FailedPreconditionError(absl::StrCat("server.data_dir is of another cluster or server: ", path,
                                                      " says ", what, " ", there, ", and the configuration ", here,
                                                      ": set another server.data_dir, or correct ", what));
  };
  const v1::ClusterConfig& cluster = config_.cluster();
  if (state_.format() != kFormat) {
    return absl::FailedPreconditionError(absl::StrCat(path, " has format ", state_.format(),
                                                      ", and this program reads ", kFormat,
                                                      ": start the program that wrote it"));
  }
  if (state_.cluster() != cluster.name()) return differs("cluster.name", state_.cluster(), cluster.name());
  if (state_.server() != config_.server().index())
    return differs("server.index", state_.server(), config_.server().index());
  if (state_.shards() != cluster.shards()) return differs("cluster.shards", state_.shards(), cluster.shards());
  if (state_.seed() != cluster.seed()) return differs("cluster.seed", state_.seed(), cluster.seed());
  former_token_ = state_.member_token();
  served_ = state_.generation() > 0;
  if (served_ && has_log() && !state_.boot().empty()) {
    const bool on_disk = state_.closed() || state_.synced() || state_.boot() == BootId();
    whole_ = on_disk && !config_.server().cut_damaged_log();
  }
  CheckArithmetic();
  if (state_.folder() == 0) state_.set_folder(DrawNonce());
  state_.set_member_token(DrawNonce());
  return SaveState();
}

void DataDir::CheckArithmetic() const {
  if (state_.arithmetic() == 0 || state_.arithmetic() == ArithmeticFingerprint()) return;
  unlike_metric.Add(1);
  LODESTONE_LOG(
      WARN, "storage",
      "{} was written by a machine that computes other bits than this one: what is replayed of its log, and new "
      "rows, may differ in last bits from what they were; start it on a like machine with like libraries, or "
      "compare its copies by `psctl verify --live` there={} here={}",
      path_, state_.machine(), ArithmeticName());
}

v1::ServerData DataDir::data() const {
  v1::ServerData data;
  data.set_served(served_);
  data.set_shared(state_.followed());
  // What goes back does not have what others' followers have.
  if (whole_.has_value() && !goes_back()) data.set_whole(*whole_);
  data.set_folder(path_.empty() ? StableHash(checkpoint_dir_) | 1 : state_.folder());
  if (!path_.empty()) data.set_generation(state_.generation());
  return data;
}

bool DataDir::goes_back() const {
  const std::string& load = config_.checkpoint().load();
  return !load.empty() && load != state_.loaded();
}

void DataDir::SetBegun() {
  state_.set_boot(has_log() ? BootId() : "");
  state_.set_synced(has_log() && syncs_log());
  state_.set_closed(false);
  state_.set_arithmetic(ArithmeticFingerprint());
  state_.set_machine(ArithmeticName());
}

absl::Status DataDir::NoteClosed() {
  if (!has_log()) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<LogSegments> logs, ListLogs(log_dir()));
  for (const LogSegments& log : logs) {
    if (log.front().generation != generation()) continue;
    for (const SegmentId& segment : log) {
      LODESTONE_ASSIGN_OR_RETURN(File file, File::Open(SegmentPath(log_dir(), segment), O_RDONLY));
      LODESTONE_RETURN_IF_ERROR(file.Sync());
    }
  }
  LODESTONE_RETURN_IF_ERROR(SyncFolder(log_dir()));
  state_.set_closed(true);
  return SaveState();
}

void DataDir::SetServers() {
  state_.set_servers(config_.cluster().servers());
  state_.set_followed(state_.followed() || config_.cluster().replicas() > 1);
}

absl::Status DataDir::SaveState() {
  state_.set_format(kFormat);
  state_.set_cluster(config_.cluster().name());
  state_.set_server(config_.server().index());
  state_.set_shards(config_.cluster().shards());
  state_.set_seed(config_.cluster().seed());
  if (path_.empty()) return absl::OkStatus();
  return ReplaceFile(path_ + "/state", RecordBuilder(state_, {}).Copy());
}

v1::SegmentHeader DataDir::Header() const {
  v1::SegmentHeader header;
  header.set_format(kFormat);
  header.set_cluster(config_.cluster().name());
  header.set_shards(config_.cluster().shards());
  header.set_seed(config_.cluster().seed());
  header.set_server(config_.server().index());
  header.set_lineage(state_.lineage());
  header.set_record_lineages(true);
  header.set_generation(state_.generation());
  header.set_program(kVersion);
  header.set_boot(BootId());
  return header;
}

std::vector<std::pair<uint32_t, std::string>> DataDir::FormerLogs() const {
  std::vector<std::pair<uint32_t, std::string>> logs;
  const auto names = ListFolder(config_.server().data_dir());
  if (!names.ok()) return logs;
  for (const std::string& name : *names) {
    uint32_t server = 0;
    if (!absl::StartsWith(name, "ps-") || !absl::SimpleAtoi(name.substr(3), &server)) continue;
    const std::string log_dir = absl::StrCat(config_.server().data_dir(), "/", name, "/log");
    if (server >= config_.cluster().servers() && ListFolder(log_dir).ok()) logs.emplace_back(server, log_dir);
  }
  return logs;
}

absl::StatusOr<std::vector<std::unique_ptr<ShardLog>>> DataDir::OpenLogs(size_t count, const FileCalls& calls) const {
  std::vector<std::unique_ptr<ShardLog>> logs;
  if (!has_log()) return logs;
  const auto pace = std::make_shared<CommitPace>();
  for (size_t i = 0; i < count; ++i) {
    ShardLog::Options options;
    options.segments.dir = log_dir();
    options.segments.header = Header();
    options.segments.header.set_log(static_cast<uint32_t>(i));
    options.segments.sync = syncs_log();
    options.segment_bytes_max = config_.server().log_segment_bytes();
    options.segments.calls = calls;
    options.pace = pace;
    LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<ShardLog> log, ShardLog::Open(std::move(options)));
    logs.push_back(std::move(log));
  }
  return logs;
}

absl::Status DataDir::RemoveLogsBefore(uint64_t generation) const {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<LogSegments> logs, ListLogs(log_dir()));
  for (const LogSegments& log : logs) {
    if (log.front().generation >= generation) continue;
    for (const SegmentId& segment : log) LODESTONE_RETURN_IF_ERROR(RemoveFile(SegmentPath(log_dir(), segment)));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::server
