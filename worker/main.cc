// The worker: joins the cluster, reads its partition of the data, trains, and writes what came out.

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "common/config/options.h"
#include "common/http/monitoring.h"
#include "common/io/file.h"
#include "common/io/machine_limits.h"
#include "common/rpc/tuning.h"
#include "common/security/credentials.h"
#include "common/telemetry/log.h"
#include "kernels/backend.h"
#include "kernels/blas_core.h"
#include "kernels/cpu_backend.h"
#include "kernels/matmul.h"
#include "worker/client/client.h"
#include "worker/data/dataset.h"
#include "worker/device.h"
#include "worker/model/candidates.h"
#include "worker/model/description_check.h"
#include "worker/model/model_description.h"
#include "worker/model/model_plan.h"
#include "worker/report/results.h"
#include "worker/report/summary.h"
#include "worker/report/worker_http.h"
#include "worker/training/job.h"

namespace lodestone::worker {
namespace {

// A stopped worker gets this long to finish its step and have its pushes acknowledged.
constexpr int kStopGraceMs = 10'000;
constexpr int kSignalExitBase = 128;

// Where the signal handler writes the signal's number, as a byte.
int signal_pipe[2] = {-1, -1};

void OnSignal(int signal) {
  const int saved_errno = errno;
  const char byte = static_cast<char>(signal);
  (void)!write(signal_pipe[1], &byte, 1);
  errno = saved_errno;
}

// Acts on SIGINT and SIGTERM, on a thread of its own. If the worker can end by itself, a first SIGINT asks it to finish
// (no further step, but all that comes after the last), for which it may take its time, and SIGTERM or a second SIGINT
// to quit. What comes after that, or the end of the grace period, ends the process, as the first one does otherwise. (A
// handler, since waiting for blocked signals would miss those that go to threads which libraries start before main.)
class SignalWatch {
 public:
  SignalWatch() {
    if (pipe2(signal_pipe, O_CLOEXEC) != 0) return;  // Signals then end the process at once.
    std::thread([this] { Run(); }).detach();
    struct sigaction action = {};
    action.sa_handler = OnSignal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);
    sigset_t signals;  // The parent process may have blocked them.
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  }

  const std::atomic<StopRequest>* stop() const { return &stop_; }
  int signal() const { return signal_; }
  // Whether the worker looks at `stop` and ends by itself.
  void SetGraceful(bool graceful) { graceful_ = graceful; }

 private:
  static char Next() {
    char byte = 0;
    while (read(signal_pipe[0], &byte, 1) != 1) {
    }
    return byte;
  }

  void Run() {
    char byte = Next();
    if (byte == SIGINT && graceful_) {
      stop_ = StopRequest::kFinish;
      LODESTONE_LOG(WARN, "worker", "takes no further step and goes on to the end; another signal quits signal=SIGINT");
      byte = Next();
    }
    signal_ = byte;
    stop_ = StopRequest::kQuit;
    LODESTONE_LOG(WARN, "worker", "stopping signal={}", byte == SIGINT ? "SIGINT" : "SIGTERM");
    if (graceful_) {
      pollfd second = {signal_pipe[0], POLLIN, 0};
      poll(&second, 1, kStopGraceMs);
      LODESTONE_LOG(WARN, "worker", "ending without waiting for pushes in flight");
    }
    _exit(kSignalExitBase + byte);
  }

  std::atomic<StopRequest> stop_{StopRequest::kNone};
  std::atomic<bool> graceful_{false};
  std::atomic<int> signal_{0};
};

// The model that the cluster holds, which this worker is to train on; null if it holds none.
absl::StatusOr<std::shared_ptr<const v1::ModelDescription>> FindModel(const v1::Config& config, Client* client) {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<v1::TableSpec> found, client->DescribeTables({kDescribedTable}));
  if (found.empty()) return nullptr;
  if (!found[0].has_model()) {
    LODESTONE_LOG(WARN, "worker",
                  "the cluster holds tables that a program made which did not describe its model: their statistics and "
                  "classes are taken from this run's data");
    return nullptr;
  }
  auto model = std::make_shared<const v1::ModelDescription>(found[0].model());
  LODESTONE_RETURN_IF_ERROR(CheckDescription(*model));
  v1::ModelConfig::Loss loss = config.model().loss();
  if (loss == v1::ModelConfig::AUTO) v1::ModelConfig::Loss_Parse(absl::AsciiStrToUpper(model->loss()), &loss);
  LODESTONE_RETURN_IF_ERROR(CheckContinues(*model, config.model().type(), loss));
  LODESTONE_LOG(INFO, "worker", "goes on with the model of the cluster type={} trained_on={} classes={} made_by={}",
                model->type(), model->data().format(), model->data().classes_size(), model->program());
  return model;
}

// `device`: what will compute.
absl::StatusOr<LoadedData> Load(const v1::Config& config, const std::string& device, Client* client) {
  v1::WorkerProgress progress;
  progress.set_device(device);
  progress.set_phase(v1::PHASE_LOADING);
  client->ReportProgress(progress);
  const bool leased = config.train().sharing() == v1::TrainConfig::RANGES;  // Any range may come to any worker.
  const Partition partition = leased ? Partition() : Partition{client->index(), config.cluster().workers()};
  if (partition.index >= partition.count) {
    return absl::InvalidArgumentError(absl::StrCat("this is worker ", partition.index, " and cluster.workers is ",
                                                   partition.count, ": no part of the training data is left for it"));
  }
  const SteadyTime time;
  const int64_t start_ms = time.NowMs();
  LODESTONE_ASSIGN_OR_RETURN(std::shared_ptr<const v1::ModelDescription> continued, FindModel(config, client));
  auto data = LoadData(config, LabelsOf(config.model()), partition,
                       partition.index == 0 || config.train().has_validate(), nullptr, std::move(continued));
  if (!data.ok()) return data;
  if (config.model().type() == v1::ModelConfig::TWOTOWER) LODESTONE_RETURN_IF_ERROR(AddCandidates(config, &*data));
  LODESTONE_LOG(INFO, "worker",
                "data loaded partition={}/{} samples={} of={} test_samples={} numeric={} fields={} "
                "sparse={} classes={} memory_bytes={} spilled_bytes={} parsed_bytes={} seconds={:.1f}",
                partition.index, partition.count, data->train->size(), data->schema.train_samples,
                data->test == nullptr ? 0 : data->test->size(), data->schema.numeric_count, data->schema.field_count,
                data->schema.sparse, data->schema.class_names.size(), data->memory_bytes, data->spilled_bytes,
                data->parsed_bytes, static_cast<double>(time.NowMs() - start_ms) / 1000);
  return data;
}

// Whether all samples were trained.
absl::StatusOr<bool> Run(const v1::Config& config, const std::string& summary_path, SignalWatch* signals) {
  // Some products' bits depend on how many threads share them.
  const uint32_t threads = config.worker().deterministic() ? 1 : config.worker().threads();
  kernels::cpu::SetMatMulThreads(threads > 0 ? static_cast<int>(threads) : static_cast<int>(MachineCores()));
  // A worker that is given its index when it joins opens its device then; others before, so that one that cannot
  // compute takes no place.
  std::unique_ptr<kernels::Backend> device;
  if (config.worker().has_index()) {
    LODESTONE_ASSIGN_OR_RETURN(device, OpenDevice(config.worker(), config.worker().index()));
  }
  const SteadyTime time;
  std::unique_ptr<WorkerHttp> http;  // Null if it has no HTTP port.
  std::function<void(const v1::WorkerProgress&)> on_progress;
  if (const std::string& listen = config.worker().http_listen(); !listen.empty()) {
    LODESTONE_ASSIGN_OR_RETURN(const CredentialsRef credentials, Credentials::Make(config.security()));
    LODESTONE_ASSIGN_OR_RETURN(http, WorkerHttp::Start(listen, HttpSecurityOf(credentials)));
    on_progress = [&http](const v1::WorkerProgress& progress) { http->Report(progress); };
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<Client> client, Client::Connect(config, on_progress));
  SetLogId(absl::StrCat(client->index()));
  if (http != nullptr) http->Joined(client->index());
  if (!config.worker().has_index()) {
    LODESTONE_ASSIGN_OR_RETURN(device, OpenDevice(config.worker(), client->index()));
  }
  kernels::Backend* const backend = device == nullptr ? kernels::Cpu() : device.get();
  std::unique_ptr<Results> results;
  if (!config.worker().results_dir().empty()) {
    LODESTONE_ASSIGN_OR_RETURN(results, Results::Open(config, client->index(), backend->name(), &time));
  }
  const auto run = [&]() -> absl::StatusOr<Summary> {
    LODESTONE_ASSIGN_OR_RETURN(const LoadedData data, Load(config, backend->name(), client.get()));
    signals->SetGraceful(true);
    return RunJob(config, client.get(), data, &time, signals->stop(), results.get(), backend);
  };
  const absl::StatusOr<Summary> summary = run();
  if (!summary.ok()) {
    if (results != nullptr) results->Fail(summary.status());
    return summary.status();
  }
  if (results != nullptr) results->Finish(*summary);
  if (!summary_path.empty()) LODESTONE_RETURN_IF_ERROR(ReplaceFile(summary_path, SummaryJson(*summary)));
  return summary->complete();
}

int Main(int argc, char** argv) {
  // Lives until the process ends, as its thread does.
  static SignalWatch* const signals = new SignalWatch;
  std::string summary_path;
  OptionsSpec spec;
  spec.program = "lodestone-worker";
  spec.description = "Trains a model of a Lodestone cluster on this worker's partition of the data.";
  spec.examples = "lodestone-worker --config cluster.yaml --set coordinator.address=10.0.0.1:7000";
  spec.flags = {{"--summary", "FILE", "Write the final result to FILE as JSON.", &summary_path}};
  spec.trains = true;
  ProcessOptions options;
  if (const std::optional<int> exit_code = ParseOptions(argc, argv, spec, &options)) return *exit_code;
  const v1::Config& config = options.config;
  InitLog(config.log(), "worker", config.worker().has_index() ? absl::StrCat(config.worker().index()) : "");
  signal(SIGPIPE, SIG_IGN);  // What reads its output may go: lines are lost then, and it works on.

  const absl::StatusOr<bool> complete = Run(config, summary_path, signals);
  if (complete.ok()) return *complete ? 0 : kExitUntrained;
  const absl::Status& status = complete.status();
  if (signals->signal() != 0) {
    LODESTONE_LOG(WARN, "worker", "ended early: {}", std::string(status.message()));
    return kSignalExitBase + signals->signal();
  }
  LODESTONE_LOG(ERROR, "worker", "failed: {}", std::string(status.message()));
  return 1;
}

}  // namespace
}  // namespace lodestone::worker

int main(int argc, char** argv) {
  lodestone::kernels::cpu::RestartOnBetterCoreType(argv);
  lodestone::TuneLibraries();
  return lodestone::worker::Main(argc, argv);
}
