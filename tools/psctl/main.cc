// psctl: runs, watches and checks clusters.
#include <signal.h>

#include <string>

#include "common/base/version.h"
#include "kernels/blas_core.h"
#include "tools/psctl/command_line.h"
#include "tools/psctl/text/exit_code.h"

namespace {

// What verbs wait for (top, local).
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGWINCH, SIGCHLD};

void SetSignals(int how) {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : kSignals) sigaddset(&signals, signal);
  sigprocmask(how, &signals, nullptr);
}

// OpenBLAS starts threads when it is loaded, before main: they must leave the signals to this one, which runs first.
void BlockSignals(int, char**, char**) { SetSignals(SIG_BLOCK); }
__attribute__((section(".preinit_array"), used)) void (*const block_signals)(int, char**, char**) = BlockSignals;

}  // namespace

int main(int argc, char** argv) {
  SetSignals(SIG_UNBLOCK);
  lodestone::kernels::cpu::RestartOnBetterCoreType(argv);
  signal(SIGPIPE, SIG_IGN);
  return lodestone::psctl::AfterOutput(
      lodestone::psctl::CommandLine("psctl " + lodestone::VersionText()).Run(argc, argv));
}
