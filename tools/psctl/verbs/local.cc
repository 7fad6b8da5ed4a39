#include "tools/psctl/verbs/local.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "CLI/App.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/limits.h"
#include "common/base/nonce.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/config/config.h"
#include "common/io/file.h"
#include "common/io/machine_limits.h"
#include "common/io/output_file.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/client/client_security.h"
#include "tools/psctl/files/tensor_file.h"
#include "tools/psctl/local/local_cluster.h"
#include "tools/psctl/local/program_path.h"
#include "tools/psctl/local/run_summary.h"
#include "tools/psctl/local/training_progress.h"
#include "tools/psctl/text/console.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/verbs/flags.h"
#include "tools/psctl/verbs/kept_model.h"

namespace lodestone::psctl {
namespace {

namespace fs = std::filesystem;

constexpr int kPollMs = 500;
constexpr int64_t kPlainLineEveryMs = 5'000;
constexpr int kSlowEndMs = 2'000;  // The ps' end is said to take its time.

// A folder that is removed, with all in it, at the end.
class TemporaryFolder {
 public:
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  absl::Status Create() {
    std::error_code error;
    fs::path parent = fs::temp_directory_path(error);
    if (error) parent = "/tmp";
    std::string name = (parent / "lodestone-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("making a folder ", name));
    path_ = name;
    return absl::OkStatus();
  }
  // Has the folder stay.
  void Leave() { path_.clear(); }
  std::string path() const { return path_.string(); }
  std::string File(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// The program of a role: `given` if that is not empty, else the one that belongs to this psctl.
absl::StatusOr<std::string> ProgramOf(const std::string& given, absl::string_view role, absl::string_view built) {
  if (!given.empty()) return given;
  LODESTONE_ASSIGN_OR_RETURN(const std::string folder, OwnFolder());
  return FindProgram(folder, role, built);
}

// Where the process `index` of those of its kind listens for HTTP: the first as configured, the others on a free port
// of the same host, since they share this machine. Empty: nowhere.
std::string HttpListen(const std::string& configured, uint32_t index) {
  const size_t colon = configured.rfind(':');
  if (index == 0 || colon == std::string::npos) return configured;
  return configured.substr(0, colon) + ":0";
}

// The text of an address file: "host:port" and a line end; empty until it is all there.
std::string ReadAddress(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return file.eof() ? "" : line;
}

// How many workers there are: first, and at most.
struct WorkerCount {
  uint32_t first = 0;
  uint32_t most = 0;
};

// Reads "4" or "2..6".
absl::StatusOr<WorkerCount> ParseWorkers(const std::string& text) {
  const std::vector<std::string> ends = absl::StrSplit(text, "..");
  WorkerCount count;
  const bool reads =
      ends.size() <= 2 && absl::SimpleAtoi(ends.front(), &count.first) && absl::SimpleAtoi(ends.back(), &count.most);
  if (reads && count.first > 0 && count.first <= count.most && count.most <= limits::kWorkersMax) return count;
  return absl::InvalidArgumentError(absl::StrCat(
      "--workers ", text, ": a number of workers, as 4, or two, as 2..6, from 1 to ", limits::kWorkersMax));
}

// Whether the workers of `status` all train, `running` of them, so that one more can join; not if the run ends, or will
// before that one could help.
bool AllTrain(const v1::StatusResponse& status, uint32_t running) {
  uint32_t train = 0;
  const v1::RangeState& ranges = status.cluster().ranges();
  uint64_t begun = ranges.batches_closed();
  for (const v1::RangeLease& range : ranges.open()) begun += range.batches();
  const uint64_t begun_soon = begun + uint64_t{running} * ranges.plan().range_batches();
  if (status.cluster().has_ranges() && begun_soon >= BatchesInAll(ranges)) return false;
  for (const v1::MemberStatus& worker : status.cluster().workers()) {
    const v1::WorkerProgress& progress = worker.progress();
    if (progress.phase() > v1::PHASE_TRAINING) return false;
    train += worker.alive() && progress.phase() == v1::PHASE_TRAINING && progress.clock() > 0;
  }
  return running > 0 && train >= running;
}

// One run of `psctl local`.
class LocalRun {
 public:
  // `summary_file`: null: the summary is not wanted.
  LocalRun(const LocalOptions& options, const WorkerCount& workers, v1::Config config,
           std::unique_ptr<OutputFile> summary_file)
      : options_(options),
        workers_(workers),
        config_(std::move(config)),
        summary_file_(std::move(summary_file)),
        console_(STDERR_FILENO, !options.quiet && Console::IsTerminal(STDERR_FILENO)),
        model_(options.model, options.from, config_),
        cluster_([this](const Child& child, absl::string_view line) { ShowLine(child, line); }, [this] { Tick(); }) {}

  int Run() {
    absl::StatusOr<RunSummary> summary = Train();
    poller_.reset();
    if (!summary.ok()) {
      if (absl::IsCancelled(summary.status()) && !interrupted_) Say("stopping; Ctrl-C again kills at once");
      cluster_.StopAll();
      console_.SetBar("");
      if (absl::IsCancelled(summary.status()) || interrupted_) {
        console_.Print("psctl: interrupted; all processes are stopped");
        return kExitInterrupted;
      }
      console_.Print(absl::StrCat("psctl: ", summary.status().message()));
      return kExitFailed;
    }
    console_.SetBar("");
    summary->interrupted |= interrupted_;
    const absl::Status kept = model_.Keep(summary->best_model);
    std::fputs((options_.json ? ToJson(*summary) : ToTable(*summary)).c_str(), stdout);
    std::fflush(stdout);
    const int written = WriteSummary(*summary);
    if (!kept.ok()) {
      if (model_.IsInRunFolder()) folder_.Leave();  // Perhaps it has all that there is of the model.
      console_.Print(absl::StrCat("psctl: the model could not be written: ", kept.message(),
                                  "; to try again: psctl export ", model_.Source(), " --out FILE"));
      return kExitFailed;
    }
    Say(model_.Report());
    if (written != 0) return written;
    if (interrupted_) return kExitInterrupted;
    return summary->complete ? kExitDone : kExitUntrained;
  }

 private:
  absl::StatusOr<RunSummary> Train() {
    LODESTONE_RETURN_IF_ERROR(folder_.Create());
    LODESTONE_ASSIGN_OR_RETURN(const std::string ps, ProgramOf(options_.ps_binary, "ps", "server/ps"));
    LODESTONE_ASSIGN_OR_RETURN(const std::string worker, ProgramOf(options_.worker_binary, "worker", "worker/worker"));
    LODESTONE_RETURN_IF_ERROR(model_.Prepare(folder_.path()));
    LODESTONE_RETURN_IF_ERROR(StartServers(ps));
    if (workers_.most > workers_.first) cluster_.SetWorkersMin(workers_.first);
    while (started_ < workers_.first) LODESTONE_RETURN_IF_ERROR(StartWorker(worker));
    worker_program_ = worker;
    poller_.emplace(coordinator_, kPollMs);
    LODESTONE_RETURN_IF_ERROR(AwaitWorkers());
    poller_.reset();
    console_.SetBar("");
    if (const auto last = FetchStatus(coordinator_, kPollMs); last.ok()) ShowValidations(last->cluster().validations());
    LODESTONE_RETURN_IF_ERROR(cluster_.StopServers(kSlowEndMs, [this] {
      Say("waiting for the ps to write their last checkpoint and end; Ctrl-C does not wait any longer");
    }));
    std::vector<RunSummary> summaries;
    for (uint32_t i = 0; i < started_; ++i) {
      if (cluster_.IsLost(WorkerName(i))) continue;
      LODESTONE_ASSIGN_OR_RETURN(RunSummary summary, ReadSummary(SummaryFile(i)));
      summaries.push_back(std::move(summary));
    }
    RunSummary all = Combine(summaries);
    all.config = options_.config_path;
    all.servers = Servers();
    all.results = config_.worker().results_dir();
    return all;
  }

  // A first Ctrl-C ends the training and not the run: what was trained is evaluated.
  absl::Status AwaitWorkers() {
    absl::Status added;
    const auto ends = [&] {
      if (std::exchange(all_train_, false) && started_ < workers_.most && !interrupted_) {
        const std::string others = absl::StrCat("all ", cluster_.RunningWorkers(), " workers train; ");
        added = StartWorker(worker_program_);
        if (added.ok()) Say(absl::StrCat(others, WorkerName(started_ - 1), " is started"));
      }
      return !added.ok() || cluster_.WorkersDone();
    };
    const auto await = [&] {
      LODESTONE_RETURN_IF_ERROR(cluster_.WaitFor(ends, "the workers", 0));
      return added;
    };
    const absl::Status status = await();
    if (!absl::IsCancelled(status) || !cluster_.AskToFinish()) return status;
    Say("training is interrupted: the workers evaluate what they have trained; Ctrl-C again kills at once");
    interrupted_ = true;
    return await();
  }

  // How many there are: those that the cluster begins with, and those that have come since.
  uint32_t Servers() const {
    const v1::ClusterConfig& cluster = config_.cluster();
    if (cluster.servers_at_start() == 0) return cluster.servers();
    uint32_t count = cluster.servers_at_start();
    const std::string& data_dir = config_.server().data_dir();
    for (uint32_t i = count; !data_dir.empty() && i < cluster.servers(); ++i) {
      if (ListFolder(absl::StrCat(data_dir, "/ps-", i)).ok()) count = i + 1;
    }
    return count;
  }

  // ps 0 first, whose address the others need.
  absl::Status StartServers(const std::string& program) {
    const std::string http = config_.server().has_http_listen() ? config_.server().http_listen() : "127.0.0.1:0";
    for (uint32_t i = 0, servers = Servers(); i < servers; ++i) {
      std::vector<std::string> argv = CommonArguments(program);
      const std::string address_file = folder_.File(absl::StrCat("ps-", i, ".address"));
      Append(&argv,
             {"--set", "server.listen=127.0.0.1:0", "--set", "server.advertise=", "--set",
              absl::StrCat("server.index=", i), "--set", absl::StrCat("coordinator.address=", coordinator_), "--set",
              absl::StrCat("server.http_listen=", HttpListen(http, i)), "--address-file", address_file});
      LODESTONE_RETURN_IF_ERROR(cluster_.Start(Role::kServer, absl::StrCat("ps ", i), argv));
      if (i > 0) continue;
      LODESTONE_RETURN_IF_ERROR(cluster_.WaitFor([&] { return !(coordinator_ = ReadAddress(address_file)).empty(); },
                                                 "the address of ps 0", config_.coordinator().join_timeout_ms()));
      Say(absl::StrCat("ps 0 is at ", coordinator_, " (psctl status --address ", coordinator_, ")"));
    }
    return absl::OkStatus();
  }

  // The next one.
  absl::Status StartWorker(const std::string& program) {
    const uint32_t index = started_++;
    std::vector<std::string> argv = CommonArguments(program);
    Append(&argv, {"--set", absl::StrCat("coordinator.address=", coordinator_), "--summary", SummaryFile(index)});
    // One that comes late, when the run is over, does not train all of it again.
    if (!config_.worker().has_launch()) Append(&argv, {"--set", absl::StrCat("worker.launch=", launch_)});
    if (const std::string http = HttpListen(config_.worker().http_listen(), index); !http.empty()) {
      Append(&argv, {"--set", absl::StrCat("worker.http_listen=", http)});
    }
    if (config_.worker().threads() == 0) {
      Append(&argv, {"--set", absl::StrCat("worker.threads=", std::max(1u, MachineCores() / workers_.most))});
    }
    std::vector<std::string> first = argv;
    if (index < workers_.first) Append(&first, {"--set", absl::StrCat("worker.index=", index)});
    std::vector<std::string> again;
    // Where samples are leased any place does, and its own is free only when its lease has ended.
    if (options_.restart_workers) again = config_.train().sharing() == v1::TrainConfig::RANGES ? argv : first;
    return cluster_.Start(Role::kWorker, WorkerName(index), first, std::move(again));
  }

  std::vector<std::string> CommonArguments(const std::string& program) const {
    std::vector<std::string> argv = {program, "--config", options_.config_path};
    // All of it is on this machine.
    if (!config_.cluster().has_local_sockets()) Append(&argv, {"--set", "cluster.local_sockets=true"});
    for (const std::string& set : options_.sets) Append(&argv, {"--set", set});
    for (const std::string& set : model_.sets()) Append(&argv, {"--set", set});
    // The progress shows what INFO lines would say.
    if (!options_.verbose && !config_.log().has_level()) Append(&argv, {"--set", "log.level=WARN"});
    return argv;
  }

  static void Append(std::vector<std::string>* argv, std::initializer_list<std::string> more) {
    argv->insert(argv->end(), more);
  }

  static std::string WorkerName(uint32_t worker) { return absl::StrCat("worker ", worker); }
  std::string SummaryFile(uint32_t worker) const { return folder_.File(absl::StrCat("worker-", worker, ".json")); }

  void Say(absl::string_view text) {
    if (!options_.quiet) console_.Print(absl::StrCat("psctl: ", text));
  }

  void ShowLine(const Child& child, absl::string_view line) {
    if (options_.quiet) return;
    const int next_color = static_cast<int>(colors_.size());
    console_.PrintFrom(child.name(), colors_.try_emplace(child.name(), next_color).first->second, line);
  }

  // Takes notice of the progress if there is news of it, and shows it.
  void Tick() {
    if (!poller_.has_value()) return;
    const std::optional<v1::StatusResponse> status = poller_->Take();
    if (!status.has_value()) return;
    all_train_ = AllTrain(*status, cluster_.RunningWorkers());
    if (options_.quiet) return;
    if (!page_shown_ && !status->server().http().empty()) {
      page_shown_ = true;
      Say(absl::StrCat("the cluster's page is ", config_.security().certificate().empty() ? "http://" : "https://",
                       status->server().http(), "/"));
    }
    ShowValidations(status->cluster().validations());
    const ClusterView view = ViewOf(*status, started_);
    const int64_t now_ms = time_.NowMs();
    rate_.Observe(1e-3 * now_ms, view.samples);
    if (console_.terminal()) return console_.SetBar(ProgressBar(view, rate_.per_second(), console_.width()));
    if (shown_phase_ == view.phase && now_ms - shown_ms_ < kPlainLineEveryMs) return;
    shown_phase_ = view.phase;
    shown_ms_ = now_ms;
    Say(ProgressLine(view, rate_.per_second()));
  }

  void ShowValidations(const v1::ValidationState& state) {
    double best = 0;
    bool any = false;
    for (const v1::Validation& validation : state.results()) {
      const double value = validation.judged_by().value();
      const bool better = !any || (validation.lower_is_better() ? value < best : value > best);
      if (better) best = value;
      any = true;
      if (validations_shown_.insert(validation.number()).second) Say(ValidationLine(validation, better));
    }
    if (state.stopped().empty() || std::exchange(early_end_shown_, true)) return;
    Say(absl::StrCat("training ends early: ", state.stopped()));
  }

  int WriteSummary(const RunSummary& summary) {
    if (summary_file_ == nullptr) return 0;
    absl::Status written = summary_file_->Write(ToJson(summary));
    if (written.ok()) written = summary_file_->Publish();
    if (written.ok()) return 0;
    console_.Print(absl::StrCat("psctl: the summary could not be written: ", written.message()));
    return kExitFailed;
  }

  const LocalOptions& options_;
  const WorkerCount workers_;
  const v1::Config config_;
  const std::unique_ptr<OutputFile> summary_file_;
  const SteadyTime time_;
  Console console_;
  TemporaryFolder folder_;
  KeptModel model_;
  LocalCluster cluster_;  // Before the poller's thread, which is to have its signal mask.
  std::optional<StatusPoller> poller_;
  std::string coordinator_;  // Its address.
  std::string worker_program_;
  const std::string launch_ = absl::StrCat("local-", absl::Hex(DrawNonce()));  // worker.launch.
  uint32_t started_ = 0;               // Workers, each counted once however often it was started again.
  bool all_train_ = false;             // By the newest status that was not acted on.
  std::map<std::string, int> colors_;  // By process name.
  SampleRate rate_;
  bool interrupted_ = false;  // By a first Ctrl-C.
  bool page_shown_ = false;
  std::set<uint64_t> validations_shown_;  // By number.
  bool early_end_shown_ = false;
  std::optional<v1::Phase> shown_phase_;
  int64_t shown_ms_ = 0;
};

}  // namespace

int RunLocal(const LocalOptions& given) {
  LocalOptions options = given;
  WorkerCount workers;
  if (!options.workers.empty()) {
    const absl::StatusOr<WorkerCount> parsed = ParseWorkers(options.workers);
    if (!parsed.ok()) return FailUsage("local", parsed.status().message());
    workers = *parsed;
    options.sets.push_back(absl::StrCat("cluster.workers=", workers.first));
  }
  absl::StatusOr<v1::Config> config = LoadConfig(options.config_path, options.sets, ConfigUse::kTraining);
  if (!config.ok()) {
    std::fprintf(stderr, "%s\n", std::string(config.status().message()).c_str());
    return kExitUsage;
  }
  if (options.workers.empty()) workers = {config->cluster().workers(), config->cluster().workers()};
  if (workers.most > workers.first && config->train().sharing() != v1::TrainConfig::RANGES) {
    return FailUsage("local", absl::StrCat("--workers ", options.workers,
                                           ": workers can join a run only if the coordinator leases them its samples; "
                                           "set train.sharing=ranges"));
  }
  if (!options.model.empty()) {
    absl::Status writable = TensorFile::CheckPath(options.model);
    if (writable.ok()) writable = OutputFile::Check(options.model);
    if (!writable.ok()) return FailUsage("local", absl::StrCat("--model ", writable.message()));
  }
  std::unique_ptr<OutputFile> summary_file;
  if (!options.summary_path.empty()) {
    auto opened = OutputFile::Open(options.summary_path);
    if (!opened.ok()) {
      std::fprintf(stderr, "psctl: the summary cannot be written: %s\n",
                   std::string(opened.status().message()).c_str());
      return kExitUsage;
    }
    summary_file = *std::move(opened);
  }
  if (const absl::Status used = UseSecurity(config->security()); !used.ok()) {
    std::fprintf(stderr, "psctl: %s\n", std::string(used.message()).c_str());
    return kExitUsage;
  }
  return LocalRun(options, workers, *std::move(config), std::move(summary_file)).Run();
}

const Verb kLocalVerb = {
    "local", "Trains on a cluster of this machine's processes",
    "  psctl local configs/local.yaml                         train on a cluster of this machine's processes\n"
    "  psctl local configs/a9a.yaml --set data.train=a9a --set data.test=a9a.t --summary result.json\n"
    "  psctl local configs/a9a.yaml --model a9a.safetensors   train and keep the model\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<LocalOptions>();
      command->add_option("CONFIG", options->config_path, "YAML file that describes the cluster")
          ->required()
          ->type_name("FILE");
      AddSet(command, &options->sets);
      command->add_option("--summary", options->summary_path, "Writes the result to this file as JSON")
          ->type_name("FILE");
      command
          ->add_option("--model", options->model,
                       "Keeps the trained model: FILE.safetensors, which psctl predict and --from read, or FILE.npz")
          ->type_name("FILE");
      command->add_option("--from", options->from, "Starts from a model that was kept: FILE.safetensors")
          ->type_name("FILE");
      command->add_option("--ps-binary", options->ps_binary, "The ps program (default: lodestone-ps beside psctl)")
          ->type_name("FILE");
      command
          ->add_option("--worker-binary", options->worker_binary,
                       "The worker program (default: lodestone-worker beside psctl)")
          ->type_name("FILE");
      command
          ->add_option("--workers", options->workers,
                       "So many workers instead of cluster.workers. MIN..MAX, with train.sharing: ranges: MIN of them, "
                       "one more whenever all train, up to MAX; one that a signal ends does not end the run while MIN "
                       "others are there")
          ->type_name("N|MIN..MAX");
      command->add_flag("--restart-workers", options->restart_workers,
                        "Starts a worker again that a signal has ended, instead of ending the run; with train.sharing: "
                        "ranges no sample is trained twice for it");
      CLI::Option* quiet = command->add_flag("--quiet", options->quiet, "Prints errors and the result only");
      command
          ->add_flag("--verbose", options->verbose,
                     "Prints all that the processes log; without it warnings and errors, or what log.level says")
          ->excludes(quiet);
      AddJson(command, &options->json, "Prints the result as JSON");
      return [options] { return RunLocal(*options); };
    }};

}  // namespace lodestone::psctl
