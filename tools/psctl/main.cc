// psctl: runs, watches and checks clusters.
#include <signal.h>

#include <string>

#include "common/base/version.h"
#include "tools/psctl/command_line.h"
#include "tools/psctl/text/exit_code.h"

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  return lodestone::psctl::AfterOutput(
      lodestone::psctl::CommandLine("psctl " + lodestone::VersionText()).Run(argc, argv));
}
