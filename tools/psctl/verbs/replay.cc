#include "tools/psctl/verbs/replay.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "CLI/App.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/io/machine_limits.h"
#include "common/io/record_file.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/checkpoint_reader.h"
#include "server/checkpoint/checkpoint_writer.h"
#include "server/durability/recovery.h"
#include "server/shard/content_checksum.h"
#include "server/shard/shard.h"
#include "server/store/store.h"
#include "server/wal/log_reader.h"
#include "server/wal/segment_name.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

struct ShardResult {
  ShardId shard = 0;
  Version version = 0;
  uint64_t checksum = 0;
};

struct Result {
  server::RecoveryReport report;
  std::vector<ShardResult> shards;  // Those that have a version.
  std::string written;              // The checkpoint that was written.
};

// What the log says about the ps that wrote it.
absl::StatusOr<v1::SegmentHeader> HeaderOf(const std::string& log_dir) {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<server::LogSegments> logs, server::ListLogs(log_dir));
  absl::Status status = absl::NotFoundError(absl::StrCat(log_dir, " holds no log segments"));
  for (const server::LogSegments& log : logs) {
    LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<RecordReader> reader,
                               RecordReader::Open(server::SegmentPath(log_dir, log.front())));
    v1::SegmentHeader header;
    ByteView payload;
    if (reader->Next(&header, &payload) == RecordReader::Outcome::kRecord) return header;
    if (!reader->error().ok()) status = reader->error();
  }
  return status;
}

// Splits what --from names into the folder of checkpoints and, if it is one of them, its name.
void SplitFrom(const std::string& from, server::RecoveryOptions* options) {
  if (from.empty()) return;
  std::filesystem::path path = std::filesystem::path(from).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  bool has_manifest = false;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
    has_manifest |= entry.path().extension() == ".manifest";
  }
  if (!has_manifest) {
    options->checkpoint_dir = path.string();
    return;
  }
  options->checkpoint_dir = path.has_parent_path() ? path.parent_path().string() : std::string(".");
  options->checkpoint = path.filename().string();
}

// The shards of the ps: all, unless a named checkpoint has only some.
absl::StatusOr<std::vector<ShardId>> ShardsToRebuild(const server::RecoveryOptions& options) {
  std::vector<ShardId> shards;
  std::optional<server::CheckpointReader> reader;
  if (!options.checkpoint.empty()) {
    LODESTONE_ASSIGN_OR_RETURN(reader, server::CheckpointReader::Open(options.checkpoint_dir, options.checkpoint));
  }
  for (ShardId shard = 0; shard < options.cluster.shards(); ++shard) {
    if (!reader.has_value() || !reader->StatesOf(shard).empty()) shards.push_back(shard);
  }
  return shards;
}

server::Shard::State StateOf(server::Store* store, ShardId shard, const Version* after) {
  std::optional<server::Shard::State> state;
  store->shards().Run(shard, [&](server::Shard* owned) { state = owned->CollectState(after); });
  return *std::move(state);
}

absl::StatusOr<std::string> WriteInto(const std::string& into, const server::RecoveryOptions& options,
                                      const Result& result, server::Store* store) {
  const std::filesystem::path path = std::filesystem::path(into).lexically_normal();
  server::CheckpointWriter::Options writing;
  writing.dir = path.has_parent_path() ? path.parent_path().string() : std::string(".");
  writing.cluster = options.cluster.cluster();
  writing.server = options.cluster.server();
  writing.remove_leftovers = false;  // The ps itself may be writing there.
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<server::CheckpointWriter> writer,
                             server::CheckpointWriter::Open(writing));
  server::CheckpointWriter::Source source;
  for (const ShardResult& shard : result.shards) source.shards.push_back(shard.shard);
  source.collect = [store](ShardId shard, const Version* after) -> absl::StatusOr<server::Shard::State> {
    return StateOf(store, shard, after);
  };
  source.describe = [&](v1::ServerManifest* manifest) {
    manifest->set_servers(1);
    manifest->set_shards(options.cluster.shards());
    manifest->set_seed(options.cluster.seed());
    for (v1::TableSpec& spec : store->tables().specs()) *manifest->add_tables() = std::move(spec);
    manifest->set_tables_known(true);
  };
  LODESTONE_ASSIGN_OR_RETURN(const server::CheckpointWriter::Result written,
                             writer->Write(path.filename().string(), source));
  return written.path;
}

absl::StatusOr<Result> Replay(const ReplayOptions& options) {
  server::RecoveryOptions recovery;
  LODESTONE_ASSIGN_OR_RETURN(recovery.cluster, HeaderOf(options.log_dir));
  recovery.log_dir = options.log_dir;
  recovery.cut_damaged_log = options.cut_damaged;
  recovery.until = options.until;
  SplitFrom(options.from, &recovery);
  const AnchoredTime time;
  server::Store::Options store_options;
  store_options.seed = recovery.cluster.seed();
  store_options.shards = recovery.cluster.shards();
  store_options.executors = MachineCores();
  store_options.time = &time;
  server::Store store(store_options);
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<ShardId> shards, ShardsToRebuild(recovery));
  store.shards().Adopt(shards);
  Result result;
  LODESTONE_ASSIGN_OR_RETURN(result.report, server::Recover(recovery, &store));
  store.shards().SetLineages(result.report.lineages);
  for (const ShardId shard : shards) {
    const Version version = store.shards().VersionOf(shard);
    if (version == 0) continue;
    result.shards.push_back({shard, version, server::ContentChecksum(StateOf(&store, shard, nullptr))});
  }
  if (!options.into.empty()) {
    LODESTONE_ASSIGN_OR_RETURN(result.written, WriteInto(options.into, recovery, result, &store));
  }
  return result;
}

std::string HexOf(uint64_t checksum) { return absl::StrFormat("%016x", checksum); }

void PrintText(const Result& result) {
  std::printf("%8s %12s %18s\n", "shard", "version", "checksum");
  for (const ShardResult& shard : result.shards) {
    std::printf("%8u %12llu %18s\n", shard.shard, static_cast<unsigned long long>(shard.version),
                HexOf(shard.checksum).c_str());
  }
  std::printf("%llu log records applied, %llu shards began from a checkpoint\n",
              static_cast<unsigned long long>(result.report.records),
              static_cast<unsigned long long>(result.report.shards_from_checkpoints));
  if (!result.written.empty()) std::printf("written to %s\n", result.written.c_str());
}

void PrintJson(const Result& result) {
  nlohmann::ordered_json json;
  json["records"] = result.report.records;
  json["shards_from_checkpoints"] = result.report.shards_from_checkpoints;
  json["notes"] = result.report.notes;
  if (!result.written.empty()) json["written"] = result.written;
  json["shards"] = nlohmann::ordered_json::array();
  for (const ShardResult& shard : result.shards) {
    json["shards"].push_back({{"shard", shard.shard}, {"version", shard.version}, {"checksum", HexOf(shard.checksum)}});
  }
  std::fputs(IndentedJson(json).c_str(), stdout);
}

}  // namespace

int RunReplay(const ReplayOptions& options) {
  const absl::StatusOr<Result> result = Replay(options);
  if (!result.ok()) return Fail("replay", result.status());
  for (const std::string& note : result->report.notes) Complain("replay", note);
  if (options.json) {
    PrintJson(*result);
  } else {
    PrintText(*result);
  }
  return 0;
}

const Verb kReplayVerb = {
    "replay", "Rebuilds offline what a ps held, from a checkpoint and its log, bit for bit",
    "  psctl replay data/ps-0/log --from data/checkpoints     what did that ps hold? a version and checksum per "
    "shard\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<ReplayOptions>();
      command->add_option("LOGDIR", options->log_dir, "The log: DATA_DIR/ps-INDEX/log")->required()->type_name("DIR");
      command
          ->add_option(
              "--from", options->from,
              "A checkpoint's folder, or the folder of all, for each shard's newest up to --until (default: nothing)")
          ->type_name("DIR");
      command->add_option("--until", options->until, "The last version of each shard to rebuild (default: all)");
      command->add_option("--into", options->into, "Writes what was rebuilt as the checkpoint DIR/NAME")
          ->type_name("DIR/NAME");
      command->add_flag("--cut-damaged", options->cut_damaged, "Ends at damage as if nothing followed it");
      AddJson(command, &options->json);
      return [options] { return RunReplay(*options); };
    }};

}  // namespace lodestone::psctl
