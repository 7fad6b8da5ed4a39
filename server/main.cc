// The ps: holds parameters, and coordinates the cluster if its index is 0.

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/config/options.h"
#include "common/io/file.h"
#include "common/rpc/tuning.h"
#include "common/telemetry/log.h"
#include "grpc/support/log.h"
#include "server/process.h"

namespace lodestone::server {
namespace {

// The signal that wakes main when the ps cannot get ready. It is never unblocked: it would end a ps that is stopped
// before it is ready.
constexpr int kFailedSignal = SIGUSR1;

sigset_t SetOf(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  return set;
}

// Few arenas keep memory from lying idle in each; the others keep large blocks from going back to the system and coming
// again page by page (DESIGN section 7).
void SetUpMalloc() {
  mallopt(M_ARENA_MAX, 4);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 0x7fffffff);
  mallopt(M_TOP_PAD, 16 << 20);
}

// What gRPC has to say is about single connections; what matters of it is in the statuses of calls.
void LogGrpc(gpr_log_func_args* args) {
  LODESTONE_LOG(DEBUG, "grpc", "{} file={} line={}", args->message, args->file, args->line);
}

// Why the ps did not get ready, if so.
struct Outcome {
  Mutex mu;
  absl::Status status ABSL_GUARDED_BY(mu);
};

// Runs the ps until a signal or a failure ends it. REQUIRES: `signals` are blocked in every thread.
absl::Status Run(const v1::Config& config, const std::string& address_file, const sigset_t& signals) {
  Outcome outcome;
  const pthread_t main_thread = pthread_self();
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<ServerProcess> process,
                             ServerProcess::Start(config, [&outcome, main_thread](absl::Status status) {
                               if (status.ok()) return;
                               MutexLock lock(&outcome.mu);
                               outcome.status = std::move(status);
                               pthread_kill(main_thread, kFailedSignal);
                             }));
  if (!address_file.empty())
    LODESTONE_RETURN_IF_ERROR(
        Annotate(ReplaceFile(address_file, process->address() + "\n"), "cannot write --address-file"));
  for (;;) {
    int signal = 0;
    if (sigwait(&signals, &signal) != 0) continue;
    if (signal == kFailedSignal) {
      MutexLock lock(&outcome.mu);
      if (!outcome.status.ok()) return outcome.status;
      continue;
    }
    LODESTONE_LOG(INFO, "server", "stopping signal={}", signal == SIGINT ? "SIGINT" : "SIGTERM");
    break;
  }
  const sigset_t stops = SetOf({SIGINT, SIGTERM});
  pthread_sigmask(SIG_UNBLOCK, &stops, nullptr);  // The next one ends the process at once.
  process->Shutdown();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  SetUpMalloc();
  prctl(PR_SET_NAME, "lodestone-ps");
  const sigset_t signals = SetOf({SIGINT, SIGTERM, kFailedSignal});

  std::string address_file;
  OptionsSpec spec;
  spec.program = "lodestone-ps";
  spec.description = "Holds the parameters of a Lodestone cluster; the ps with index 0 also coordinates it.";
  spec.examples =
      "lodestone-ps --config cluster.yaml --set server.listen=0.0.0.0:7000 --set server.advertise=10.0.0.1:7000\n"
      "lodestone-ps --config cluster.yaml --set server.index=1 --set coordinator.address=10.0.0.1:7000";
  spec.flags = {{"--address-file", "PATH", "Write the address that others reach it at to PATH once it takes calls.",
                 &address_file}};
  ProcessOptions options;
  if (const std::optional<int> exit_code = ParseOptions(argc, argv, spec, &options)) return *exit_code;
  InitLog(options.config.log(), "ps", absl::StrCat(options.config.server().index()));
  gpr_set_log_function(LogGrpc);
  signal(SIGPIPE, SIG_IGN);  // What reads its output may go: lines are lost then, and it works on.

  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const absl::Status status = Run(options.config, address_file, signals);
  if (status.ok()) return 0;
  LODESTONE_LOG(ERROR, "server", "failed: {}", std::string(status.message()));
  return 1;
}

}  // namespace
}  // namespace lodestone::server

int main(int argc, char** argv) {
  lodestone::TuneLibraries();
  return lodestone::server::Main(argc, argv);
}
