// `psctl local`: a whole cluster from one configuration, as child processes, until the workers are done.
#pragma once

#include <string>
#include <vector>

#include "tools/psctl/verbs/verb.h"

namespace lodestone::psctl {

struct LocalOptions {
  std::string model;  // FILE.safetensors or FILE.npz that the trained model is written to; empty: none.
  std::string from;   // FILE.safetensors that it starts from; empty: it starts anew.
  std::string config_path;
  std::vector<std::string> sets;  // "a.b=VALUE"
  std::string summary_path;       // Where the result goes as JSON; empty: nowhere.
  std::string workers;            // "N" or "MIN..MAX"; empty: cluster.workers.
  bool restart_workers = false;
  std::string ps_binary;      // Empty: beside psctl.
  std::string worker_binary;  // Likewise.
  bool quiet = false;         // Print errors and the result only.
  bool verbose = false;       // Print all that the processes log, not only warnings and errors.
  bool json = false;          // Print the result as JSON.
};

// The ps serve HTTP on free ports of the loopback address unless the configuration says where; the page's address is
// printed. Runs it, with messages on standard error and the result on standard output. Returns the exit code: 0; 1 if a
// process failed; 2 for a wrong configuration; 5 if the run came to its end, but not all samples were trained; 130
// after Ctrl-C, of which the first ends the training (what was trained is evaluated and the summary is written), and
// the second everything, at once.
int RunLocal(const LocalOptions& options);

extern const Verb kLocalVerb;

}  // namespace lodestone::psctl
