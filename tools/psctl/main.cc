// psctl: runs, watches and checks clusters.
#include <signal.h>

#include <cstdio>
#include <string>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/status/statusor.h"
#include "common/config.h"
#include "common/host_port.h"
#include "common/options.h"
#include "common/version.h"
#include "google/protobuf/util/json_util.h"
#include "tools/psctl/admin_client.h"
#include "tools/psctl/checkpoint.h"
#include "tools/psctl/export.h"
#include "tools/psctl/health.h"
#include "tools/psctl/import.h"
#include "tools/psctl/local.h"
#include "tools/psctl/replay.h"
#include "tools/psctl/rollback.h"
#include "tools/psctl/status_table.h"
#include "tools/psctl/verify.h"
#include "tools/psctl/verify_live.h"

namespace lodestone {
namespace {

constexpr char kExamples[] = R"(Examples:
  psctl local configs/local.yaml                         train on a cluster of this machine's processes
  psctl local configs/a9a.yaml --set data.train=a9a --set data.test=a9a.t --summary result.json
  psctl local configs/mnist.yaml --set cluster.workers=3 --set cluster.servers=4
  psctl status --address 127.0.0.1:7000                  what that ps knows, as tables
  psctl status --address 127.0.0.1:7000 --json           the same for programs
  psctl health --address ps1:7000 --timeout-ms 5000      is it ready? the exit code says so
  psctl replay data/ps-0/log --from data/checkpoints     what did that ps hold? a version and checksum per shard
  psctl checkpoint --address 127.0.0.1:7000 before-move  all servers write a checkpoint of that name
  psctl rollback user_rows --to before-move              that table goes back, while the cluster runs
  psctl verify data/checkpoints                          are the checkpoints there as they were written?
  psctl verify --live                                    is every follower's copy the same as its owner's?
  psctl export data/checkpoints/before-move --out model.safetensors
  psctl import model.safetensors --into data/checkpoints/model --config configs/cluster.yaml
  psctl check configs/local.yaml                         is this configuration right, and what are its defaults?

Exit codes: 0 success, 1 failure, 2 wrong command line or configuration, 130 interrupted.)";

struct StatusOptions {
  std::string address = "127.0.0.1:7000";
  bool json = false;
  int timeout_ms = 2000;
};

int RunStatus(const StatusOptions& options) {
  if (const absl::StatusOr<HostPort> address = ParseHostPort(options.address); !address.ok()) {
    std::fprintf(stderr, "psctl status: --address: %s\n", std::string(address.status().message()).c_str());
    return kExitUsage;
  }
  const absl::StatusOr<v1::StatusResponse> status = FetchStatus(options.address, options.timeout_ms);
  if (!status.ok()) {
    std::fprintf(stderr, "psctl status: %s\n", std::string(status.status().message()).c_str());
    return 1;
  }
  std::string text;
  if (options.json) {
    google::protobuf::util::JsonPrintOptions print;
    print.add_whitespace = true;
    print.always_print_primitive_fields = true;
    print.preserve_proto_field_names = true;
    if (const auto printed = google::protobuf::util::MessageToJsonString(*status, &text, print); !printed.ok()) {
      std::fprintf(stderr, "psctl status: %s\n", printed.ToString().c_str());
      return 1;
    }
  } else {
    text = StatusText(*status);
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

struct CheckOptions {
  std::string path;
  std::vector<std::string> sets;
};

int RunCheck(const CheckOptions& options) {
  const absl::StatusOr<v1::Config> config = LoadConfig(options.path, options.sets);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", std::string(config.status().message()).c_str());
    return kExitUsage;
  }
  std::fputs(PrintConfig(*config).c_str(), stdout);
  return 0;
}

void AddLocal(CLI::App* app, LocalOptions* options) {
  CLI::App* command = app->add_subcommand("local", "Trains on a cluster of this machine's processes");
  command->add_option("CONFIG", options->config_path, "YAML file that describes the cluster")->required();
  command->add_option("--set", options->sets, "Overrides one field: a.b=VALUE")->allow_extra_args(false);
  command->add_option("--summary", options->summary_path, "Writes the result to this file as JSON");
  command->add_option("--ps-binary", options->ps_binary, "The ps program (default: beside psctl)");
  command->add_option("--worker-binary", options->worker_binary, "The worker program (default: beside psctl)");
  command->add_flag("--quiet", options->quiet, "Prints errors and the result only");
}

void AddStatus(CLI::App* app, StatusOptions* options) {
  CLI::App* command = app->add_subcommand("status", "Shows what a ps knows");
  command->add_option("--address", options->address, "host:port of the ps; ps 0 knows the workers")
      ->capture_default_str();
  command->add_flag("--json", options->json, "Prints admin.proto's StatusResponse as JSON");
  command->add_option("--timeout-ms", options->timeout_ms, "How long to wait for the answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 3'600'000));
}

void AddCheck(CLI::App* app, CheckOptions* options) {
  CLI::App* command = app->add_subcommand("check", "Checks a configuration and prints it with all defaults");
  command->add_option("CONFIG", options->path, "YAML file")->required();
  command->add_option("--set", options->sets, "Overrides one field: a.b=VALUE")->allow_extra_args(false);
}

void AddHealth(CLI::App* app, HealthOptions* options) {
  CLI::App* command = app->add_subcommand(
      "health",
      "Says whether a ps is ready: it has joined its cluster, has its shards back from checkpoint and log (or has "
      "begun to follow), can write its log, and is not told to end. Exit code 0: ready; 1: not, or nothing answers");
  command->add_option("--address", options->address, "host:port of the ps")->capture_default_str();
  command->add_option("--timeout-ms", options->timeout_ms, "How long to wait for the answer")
      ->capture_default_str()
      ->check(CLI::Range(1, 3'600'000));
}

void AddCheckpoint(CLI::App* app, CheckpointOptions* options) {
  CLI::App* command = app->add_subcommand("checkpoint", "Has all servers write a checkpoint");
  command->add_option("NAME", options->name, "Its name (default: manual- and the time, in UTC)");
  command->add_option("--address", options->address, "host:port of any ps of the cluster")->capture_default_str();
  command->add_flag("--json", options->json, "Prints the result as JSON");
  command->add_option("--timeout-ms", options->timeout_ms, "How long to wait for it")
      ->capture_default_str()
      ->check(CLI::Range(1, 86'400'000));
}

void AddReplay(CLI::App* app, ReplayOptions* options) {
  CLI::App* command =
      app->add_subcommand("replay", "Rebuilds offline what a ps held, from a checkpoint and its log, bit for bit");
  command->add_option("LOGDIR", options->log_dir, "The log: DATA_DIR/ps-INDEX/log")->required();
  command->add_option(
      "--from", options->from,
      "A checkpoint's folder, or the folder of all, for each shard's newest up to --until (default: nothing)");
  command->add_option("--until", options->until, "The last version of each shard to rebuild (default: all)");
  command->add_option("--into", options->into, "Writes what was rebuilt as the checkpoint DIR/NAME");
  command->add_flag("--cut-damaged", options->cut_damaged, "Ends at damage as if nothing followed it");
  command->add_flag("--json", options->json, "Prints JSON");
}

void AddRollback(CLI::App* app, RollbackOptions* options) {
  CLI::App* command = app->add_subcommand("rollback", "Brings one table back on all servers, while the cluster runs");
  command->add_option("TABLE", options->table, "Its name")->required();
  command
      ->add_option("--to", options->to,
                   "A checkpoint's name, or (digits only) a version, which each shard goes back to that has passed it. "
                   "For a version each ps rebuilds all that it held then beside what it holds, from its checkpoints "
                   "and its log: that takes as much memory again while it runs")
      ->required();
  command->add_option("--address", options->address, "host:port of any ps of the cluster")->capture_default_str();
  command->add_flag("--json", options->json, "Prints the result as JSON");
  command->add_option("--timeout-ms", options->timeout_ms, "How long to wait for it")
      ->capture_default_str()
      ->check(CLI::Range(1, 86'400'000));
}

void AddVerify(CLI::App* app, VerifyOptions* options, VerifyLiveOptions* live) {
  CLI::App* command = app->add_subcommand("verify", "Checks checkpoints to their last byte, or a cluster's followers");
  CLI::Option* dir = command->add_option("DIR", options->path, "A checkpoint's folder, or the folder of all of them");
  command->add_flag("--json", options->json, "Prints the report as JSON");
  CLI::Option* is_live = command->add_flag("--live", options->live,
                                           "Compares each shard of a running cluster with its follower's copy instead");
  is_live->excludes(dir);
  command->add_option("--address", live->address, "With --live: host:port of any ps of the cluster")
      ->capture_default_str()
      ->needs(is_live);
  command->add_option("--timeout-ms", live->timeout_ms, "With --live: how long to wait for it")
      ->capture_default_str()
      ->check(CLI::Range(1, 86'400'000))
      ->needs(is_live);
}

void AddExport(CLI::App* app, ExportOptions* options) {
  CLI::App* command = app->add_subcommand("export", "Writes the tables of a checkpoint as tensors");
  command->add_option("DIR", options->path, "A checkpoint's folder; or that of all: the newest state of each shard")
      ->required();
  command->add_option("--out", options->out, "FILE.safetensors or FILE.npz")->required();
  command->add_option("--table", options->tables, "This table only; may be given several times")
      ->allow_extra_args(false);
  command->add_flag("--with-state", options->with_state, "The optimizers' state too: TABLE.state and TABLE.scalars");
  command->add_flag("--signed-keys", options->signed_keys, "Keys as int64 instead of uint64: the same bits");
}

void AddImport(CLI::App* app, ImportOptions* options) {
  CLI::App* command = app->add_subcommand("import", "Makes a checkpoint of tensors, to start with checkpoint.load");
  command->add_option("FILE", options->file, "FILE.safetensors, as psctl export names its tensors")->required();
  command->add_option("--into", options->into, "DIR/NAME of the checkpoint")->required();
  command->add_option("--config", options->config_path, "YAML file that describes the cluster")->required();
  command->add_option("--set", options->sets, "Overrides one field: a.b=VALUE")->allow_extra_args(false);
  command->add_option("--like", options->like, "A checkpoint whose tables it is to have (default: as the file notes)");
}

int Main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  CLI::App app("psctl runs, watches and checks Lodestone clusters.", "psctl");
  app.footer(kExamples);
  app.set_version_flag("--version", "psctl " + VersionText());
  app.require_subcommand(1);

  LocalOptions local;
  AddLocal(&app, &local);
  StatusOptions status;
  AddStatus(&app, &status);
  HealthOptions health;
  AddHealth(&app, &health);

  CheckOptions check;
  AddCheck(&app, &check);
  ReplayOptions replay;
  AddReplay(&app, &replay);
  CheckpointOptions checkpoint;
  AddCheckpoint(&app, &checkpoint);
  RollbackOptions rollback;
  AddRollback(&app, &rollback);
  VerifyOptions verify;
  VerifyLiveOptions verify_live;
  AddVerify(&app, &verify, &verify_live);
  ExportOptions exported;
  AddExport(&app, &exported);
  ImportOptions imported;
  AddImport(&app, &imported);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  if (app.got_subcommand("local")) return RunLocal(local);
  if (app.got_subcommand("status")) return RunStatus(status);
  if (app.got_subcommand("health")) return RunHealth(health);
  if (app.got_subcommand("replay")) return RunReplay(replay);
  if (app.got_subcommand("checkpoint")) return RunCheckpoint(checkpoint);
  if (app.got_subcommand("rollback")) return RunRollback(rollback);
  if (app.got_subcommand("verify") && verify.live) {
    verify_live.json = verify.json;
    return RunVerifyLive(verify_live);
  }
  if (app.got_subcommand("verify")) return RunVerify(verify);
  if (app.got_subcommand("export")) return RunExport(exported);
  if (app.got_subcommand("import")) return RunImport(imported);
  return RunCheck(check);
}

}  // namespace
}  // namespace lodestone

int main(int argc, char** argv) { return lodestone::Main(argc, argv); }
