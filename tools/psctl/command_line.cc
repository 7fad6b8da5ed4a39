#include "tools/psctl/command_line.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "CLI/App.hpp"
#include "CLI/Config.hpp"
#include "CLI/Formatter.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config/suggest.h"
#include "tools/psctl/client/cluster_report.h"
#include "tools/psctl/completion.h"
#include "tools/psctl/text/duration.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/style.h"
#include "tools/psctl/verbs/check.h"
#include "tools/psctl/verbs/checkpoint.h"
#include "tools/psctl/verbs/events.h"
#include "tools/psctl/verbs/export.h"
#include "tools/psctl/verbs/health.h"
#include "tools/psctl/verbs/import.h"
#include "tools/psctl/verbs/listing.h"
#include "tools/psctl/verbs/local.h"
#include "tools/psctl/verbs/replay.h"
#include "tools/psctl/verbs/rollback.h"
#include "tools/psctl/verbs/status.h"
#include "tools/psctl/verbs/top.h"
#include "tools/psctl/verbs/verify.h"
#include "tools/psctl/verbs/verify_live.h"

namespace lodestone::psctl {
namespace {

constexpr char kExamples[] = R"text(Examples:
  psctl local configs/local.yaml                         train on a cluster of this machine's processes
  psctl local configs/a9a.yaml --set data.train=a9a --set data.test=a9a.t --summary result.json
  psctl top --address ps0:7000                           watch a cluster; q leaves
  psctl status --address 127.0.0.1:7000                  what that ps knows, as tables
  psctl workers --json                                   all workers, for programs
  psctl tables --address ps0:7000                        what is on all servers, table by table
  psctl waits                                            what every wait of the cluster waits for, and since when
  psctl events --follow                                  what has happened, and what happens
  psctl health --address ps1:7000 --timeout 5s           is it ready? the exit code says so
  psctl checkpoint --address 127.0.0.1:7000 before-move  all servers write a checkpoint of that name
  psctl rollback user_rows --to before-move              that table goes back, while the cluster runs
  psctl verify data/checkpoints                          are the checkpoints there as they were written?
  psctl verify --live                                    is every follower's copy the same as its owner's?
  psctl replay data/ps-0/log --from data/checkpoints     what did that ps hold? a version and checksum per shard
  psctl export data/checkpoints/before-move --out model.safetensors
  psctl import model.safetensors --into data/checkpoints/model --config configs/cluster.yaml
  psctl check configs/local.yaml                         is this configuration right, and what are its defaults?
  psctl status --config /etc/lodestone/cluster.yaml      with the token and certificates of its section security
  eval "$(psctl completion bash)"                        verbs, flags and files by the tab key

)text";

// What a verb's help ends with: its own examples.
std::string FooterOf(const std::string& verb) {
  const std::string command = absl::StrCat("psctl ", verb, " ");
  std::string text = "Examples:\n";
  for (const absl::string_view line : absl::StrSplit(kExamples, '\n')) {
    if (absl::StrContains(line, command)) absl::StrAppend(&text, line, "\n");
  }
  return absl::StrCat(text, "\n", kExitCodes);
}

constexpr char kOfCluster[] = "host:port of any ps of the cluster";

void AddAddress(CLI::App* verb, std::string* address, const std::string& help = kOfCluster) {
  verb->add_option("--address", *address, help)->type_name("HOST:PORT")->capture_default_str();
}

void AddJson(CLI::App* verb, bool* json, const std::string& help = "Prints JSON") {
  verb->add_flag("--json", *json, help);
}

CLI::Option* AddTimeout(CLI::App* verb, int* timeout_ms, const std::string& help = "How long to wait for answers") {
  const auto take = [timeout_ms](const std::string& text) {
    const absl::StatusOr<int> parsed = ParseMillis(text);
    if (!parsed.ok()) throw CLI::ValidationError("--timeout", std::string(parsed.status().message()));
    *timeout_ms = *parsed;
  };
  return verb->add_option_function<std::string>("--timeout", take, help)
      ->type_name("TIME")
      ->default_str(MillisText(*timeout_ms));
}

void AddSet(CLI::App* verb, std::vector<std::string>* sets) {
  verb->add_option("--set", *sets, "Overrides one field: a.b=VALUE")->type_name("PATH=VALUE")->allow_extra_args(false);
}

}  // namespace

CommandLine::CommandLine(const std::string& version)
    : app_(std::make_unique<CLI::App>("psctl runs, watches and checks Lodestone clusters.", "psctl")) {
  app_->footer(std::string(kExamples) + kExitCodes);
  app_->set_version_flag("--version", version);
  app_->require_subcommand(1);
  AddGlobalFlags();
  AddLocal();
  AddTop();
  AddStatus();
  AddListings();
  AddEvents();
  AddHealth();
  AddCheckpoint();
  AddRollback();
  AddVerify();
  AddReplay();
  AddExport();
  AddImport();
  AddCheck();
  AddCompletion();
}

CommandLine::~CommandLine() = default;

int CommandLine::Run(int argc, const char* const* argv) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> rest = app_->remaining();
    if (app_->get_subcommands().empty() && !rest.empty() && error.get_exit_code() != 0) return FailUnknownVerb(rest[0]);
    return app_->exit(error) == 0 ? kExitDone : kExitUsage;
  }
  SetColorMode(color_ == "always" ? ColorMode::kAlways : color_ == "never" ? ColorMode::kNever : ColorMode::kAuto);
  if (const absl::Status used = UseSecurity(security_); !used.ok()) {
    std::fprintf(stderr, "psctl: %s\n", std::string(used.message()).c_str());
    return kExitUsage;
  }
  for (const auto& [verb, run] : verbs_) {
    if (verb->parsed()) return run();
  }
  return kExitUsage;
}

int CommandLine::FailUnknownVerb(const std::string& name) const {
  std::vector<std::string> verbs;
  for (const auto& [verb, run] : verbs_) verbs.push_back(verb->get_name());
  const std::string nearest = Nearest(name, verbs);
  std::fprintf(stderr, "psctl: there is no verb `%s`%s; psctl --help has them\n", name.c_str(),
               nearest.empty() ? "" : absl::StrCat(" (did you mean `", nearest, "`?)").c_str());
  return kExitUsage;
}

void CommandLine::AddGlobalFlags() {
  app_->fallthrough();  // They may stand behind the verb too.
  app_->add_option("--color", color_, "Colours: auto has them on a terminal unless NO_COLOR is set")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("WHEN")
      ->capture_default_str();
  AddSecurity(app_.get(), &security_);
}

CLI::App* CommandLine::AddVerb(const std::string& name, const std::string& description, Runner run) {
  CLI::App* const verb = app_->add_subcommand(name, description);
  verb->footer(FooterOf(name));
  verbs_.emplace_back(verb, std::move(run));
  return verb;
}

void CommandLine::AddLocal() {
  const auto options = std::make_shared<LocalOptions>();
  CLI::App* const verb =
      AddVerb("local", "Trains on a cluster of this machine's processes", [options] { return RunLocal(*options); });
  verb->add_option("CONFIG", options->config_path, "YAML file that describes the cluster")
      ->required()
      ->type_name("FILE");
  AddSet(verb, &options->sets);
  verb->add_option("--summary", options->summary_path, "Writes the result to this file as JSON")->type_name("FILE");
  verb->add_option("--ps-binary", options->ps_binary, "The ps program (default: lodestone-ps beside psctl)")
      ->type_name("FILE");
  verb->add_option("--worker-binary", options->worker_binary,
                   "The worker program (default: lodestone-worker beside psctl)")
      ->type_name("FILE");
  verb->add_flag("--quiet", options->quiet, "Prints errors and the result only");
  AddJson(verb, &options->json, "Prints the result as JSON");
}

void CommandLine::AddTop() {
  const auto options = std::make_shared<TopOptions>();
  CLI::App* const verb = AddVerb("top",
                                 "Shows a cluster live: servers, workers, tables, waits, events. q or Ctrl-C leaves; "
                                 "without a terminal each second's picture follows the one before as plain text",
                                 [options] { return RunTop(*options); });
  AddAddress(verb, &options->address);
  verb->add_option("--count", options->count, "Ends after so many pictures (default: never)")->type_name("N");
  AddJson(verb, &options->json, "Prints one JSON object a line, each second");
  AddTimeout(verb, &options->timeout_ms, "How long to wait for the answers to one picture");
}

void CommandLine::AddStatus() {
  const auto options = std::make_shared<StatusOptions>();
  CLI::App* const verb = AddVerb("status", "Shows all that one ps knows", [options] { return RunStatus(*options); });
  AddAddress(verb, &options->address, "host:port of the ps; the one that serves the coordinator knows the workers");
  AddJson(verb, &options->json, "Prints admin.proto's StatusResponse as JSON");
  AddTimeout(verb, &options->timeout_ms);
}

void CommandLine::AddListings() {
  const struct {
    const char* name;
    const char* description;
    int (*run)(const ClusterOptions&);
  } listings[] = {
      {"tables", "Shows the tables, summed up over all servers", RunTables},
      {"workers", "Shows the workers: progress, and what all servers say of their pushes", RunWorkers},
      {"waits", "Shows what every wait of the cluster waits for, and since when", RunWaits},
  };
  for (const auto& listing : listings) {
    const auto options = std::make_shared<ClusterOptions>();
    CLI::App* const verb =
        AddVerb(listing.name, listing.description, [options, run = listing.run] { return run(*options); });
    AddAddress(verb, &options->address);
    AddJson(verb, &options->json);
    AddTimeout(verb, &options->timeout_ms);
  }
}

void CommandLine::AddEvents() {
  const auto options = std::make_shared<EventsOptions>();
  CLI::App* const verb =
      AddVerb("events", "Shows what has happened: who joined, left, died; what moved, was checkpointed, refused",
              [options] { return RunEvents(*options); });
  AddAddress(verb, &options->address);
  verb->add_flag("--follow,-f", options->follow, "Goes on with what happens, until Ctrl-C");
  verb->add_option("--last", options->last, "Begins with so many of the newest (default: all that are kept)")
      ->type_name("N");
  AddJson(verb, &options->json, "Prints a JSON array, or with --follow one JSON object a line");
  AddTimeout(verb, &options->timeout_ms, "How long to wait for answers; with --follow, how long there may be none");
}

void CommandLine::AddHealth() {
  const auto options = std::make_shared<HealthOptions>();
  CLI::App* const verb = AddVerb(
      "health",
      "Says whether a ps is ready: it has joined its cluster, has its shards back from checkpoint and log (or has "
      "begun to follow), can write its log, and is not told to end. Exit code 0: ready; 1: not; 3, 4: no answer",
      [options] { return RunHealth(*options); });
  AddAddress(verb, &options->address, "host:port of the ps");
  AddJson(verb, &options->json);
  AddTimeout(verb, &options->timeout_ms);
}

void CommandLine::AddCheckpoint() {
  const auto options = std::make_shared<CheckpointOptions>();
  CLI::App* const verb =
      AddVerb("checkpoint", "Has all servers write a checkpoint", [options] { return RunCheckpoint(*options); });
  verb->add_option("NAME", options->name, "Its name (default: manual- and the time, in UTC)");
  AddAddress(verb, &options->address);
  AddJson(verb, &options->json);
  AddTimeout(verb, &options->timeout_ms, "How long to wait for it");
}

void CommandLine::AddRollback() {
  const auto options = std::make_shared<RollbackOptions>();
  CLI::App* const verb = AddVerb("rollback", "Brings one table back on all servers, while the cluster runs",
                                 [options] { return RunRollback(*options); });
  verb->add_option("TABLE", options->table, "Its name")->required();
  verb->add_option("--to", options->to,
                   "A checkpoint's name, or (digits only) a version, which each shard goes back to that has passed it. "
                   "For a version each ps rebuilds all that it held then beside what it holds, from its checkpoints "
                   "and its log: that takes as much memory again while it runs")
      ->required();
  AddAddress(verb, &options->address);
  AddJson(verb, &options->json);
  AddTimeout(verb, &options->timeout_ms, "How long to wait for it");
}

void CommandLine::AddVerify() {
  const auto options = std::make_shared<VerifyOptions>();
  const auto live = std::make_shared<VerifyLiveOptions>();
  CLI::App* const verb = AddVerb("verify", "Checks checkpoints to their last byte, or a cluster's followers", [=] {
    live->json = options->json;
    return options->live ? RunVerifyLive(*live) : RunVerify(*options);
  });
  CLI::Option* const dir =
      verb->add_option("DIR", options->path, "A checkpoint's folder, or the folder of all of them")->type_name("DIR");
  AddJson(verb, &options->json);
  CLI::Option* const is_live = verb->add_flag(
      "--live", options->live, "Compares each shard of a running cluster with its follower's copy instead");
  is_live->excludes(dir);
  verb->add_option("--address", live->address, std::string("With --live: ") + kOfCluster)
      ->type_name("HOST:PORT")
      ->capture_default_str()
      ->needs(is_live);
  AddTimeout(verb, &live->timeout_ms, "With --live: how long to wait for it")->needs(is_live);
}

void CommandLine::AddReplay() {
  const auto options = std::make_shared<ReplayOptions>();
  CLI::App* const verb =
      AddVerb("replay", "Rebuilds offline what a ps held, from a checkpoint and its log, bit for bit",
              [options] { return RunReplay(*options); });
  verb->add_option("LOGDIR", options->log_dir, "The log: DATA_DIR/ps-INDEX/log")->required()->type_name("DIR");
  verb->add_option(
          "--from", options->from,
          "A checkpoint's folder, or the folder of all, for each shard's newest up to --until (default: nothing)")
      ->type_name("DIR");
  verb->add_option("--until", options->until, "The last version of each shard to rebuild (default: all)");
  verb->add_option("--into", options->into, "Writes what was rebuilt as the checkpoint DIR/NAME")
      ->type_name("DIR/NAME");
  verb->add_flag("--cut-damaged", options->cut_damaged, "Ends at damage as if nothing followed it");
  AddJson(verb, &options->json);
}

void CommandLine::AddExport() {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* const verb =
      AddVerb("export", "Writes the tables of a checkpoint as tensors", [options] { return RunExport(*options); });
  verb->add_option("DIR", options->path, "A checkpoint's folder; or that of all: the newest state of each shard")
      ->required()
      ->type_name("DIR");
  verb->add_option("--out", options->out, "FILE.safetensors or FILE.npz")->required()->type_name("FILE");
  verb->add_option("--table", options->tables, "This table only; may be given several times")->allow_extra_args(false);
  verb->add_flag("--with-state", options->with_state, "The optimizers' state too: TABLE.state and TABLE.scalars");
  verb->add_flag("--signed-keys", options->signed_keys, "Keys as int64 instead of uint64: the same bits");
  AddJson(verb, &options->json, "Prints what was written as JSON");
}

void CommandLine::AddImport() {
  const auto options = std::make_shared<ImportOptions>();
  CLI::App* const verb = AddVerb("import", "Makes a checkpoint of tensors, to start with checkpoint.load",
                                 [options] { return RunImport(*options); });
  verb->add_option("FILE", options->file, "FILE.safetensors, as psctl export names its tensors")
      ->required()
      ->type_name("FILE");
  verb->add_option("--into", options->into, "DIR/NAME of the checkpoint")->required()->type_name("DIR/NAME");
  verb->add_option("--config", options->config_path, "YAML file that describes the cluster")
      ->required()
      ->type_name("FILE");
  AddSet(verb, &options->sets);
  verb->add_option("--like", options->like, "A checkpoint whose tables it is to have (default: as the file notes)")
      ->type_name("DIR");
  AddJson(verb, &options->json, "Prints what was made as JSON");
}

void CommandLine::AddCheck() {
  const auto options = std::make_shared<CheckOptions>();
  CLI::App* const verb = AddVerb("check", "Checks a configuration and prints it with all defaults",
                                 [options] { return RunCheck(*options); });
  verb->add_option("CONFIG", options->path, "YAML file")->required()->type_name("FILE");
  AddSet(verb, &options->sets);
  AddJson(verb, &options->json, "Prints config.proto's Config as JSON");
}

void CommandLine::AddCompletion() {
  const auto shell = std::make_shared<std::string>();
  CLI::App* const verb = AddVerb(
      "completion", "Prints what makes a shell complete verbs, flags and files: eval \"$(psctl completion bash)\"",
      [this, shell] {
        std::fputs(CompletionScript(*app_, *shell).c_str(), stdout);
        return kExitDone;
      });
  verb->add_option("SHELL", *shell, "For which shell")->required()->check(CLI::IsMember(CompletionShells()));
}

}  // namespace lodestone::psctl
