// psctl: runs, watches and checks clusters.
#include <signal.h>

#include <string>

#include "common/version.h"
#include "tools/psctl/command_line.h"
#include "tools/psctl/outcome.h"

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  return lodestone::AfterOutput(lodestone::CommandLine("psctl " + lodestone::VersionText()).Run(argc, argv));
}
