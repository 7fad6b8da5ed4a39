// The measurement of peers and a server over a time window, and makes rows of pairs of such measurements: ours and the
// limit's.
//
// Not thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/bench/harness/peer.h"
#include "tools/bench/harness/row.h"

namespace lodestone::bench {

// How to measure; from the command line.
struct Options {
  bool quick = false;
  int runs = 5;
  int window_ms = 400;         // Of one run.
  int state_mib = 1024;        // In the tables of checkpoint.
  std::string only;            // Rows whose names contain it.
  int64_t deadline_ns = 0;     // After which no row is begun, by NowNs's clock; 0: none.
  std::string device = "cpu";  // On which step and train compute.
  std::string folder;          // Where data is kept for a while; empty: the system's place for temporary files.
  std::string root;            // The project's folder; train needs its configs/.
  std::string ps_binary;       // Where the programs are.
  std::string psctl_binary;
  std::string python = "/usr/bin/python3";  // Whose PyTorch step is measured beside.
  std::string local_step_binary;
  std::vector<std::string> sets;  // Overrides of the ps's and clients' configuration: "cluster.shards=8".
};

// Whether the row `name` is to be measured. Says on stderr if it is not because there is no time left for it.
bool IsWanted(const Options& options, const std::string& name);

// Takes rows as they are ready.
using AddRow = std::function<void(Row)>;

// One run.
struct Sample {
  double seconds = 0;
  double operations = 0;
  double least_operations = 0;  // Of the client that had the fewest.
  double slowest_p99_us = 0;    // The greatest p99 of any single client; 0: one has too few operations for one.
  double clients = 0;
  double client_cpu_seconds = 0;  // Of all clients.
  double server_cpu_seconds = 0;
  double bytes_copied = 0;          // By the clients,
  double server_bytes_copied = 0;   // and by the server.
  std::vector<float> latencies_us;  // Of all clients.
};

// The processes whose CPU time is the server's.
class ServerPids {
 public:
  // Bytes that the server has copied; nullopt: it does not tell.
  using Copied = std::function<std::optional<double>()>;

  ServerPids(pid_t pid) : pids_(pid > 0 ? 1 : 0, pid) {}  // NOLINT: one is the rule; 0: there is none.
  explicit ServerPids(std::vector<pid_t> pids, Copied copied = nullptr)
      : pids_(std::move(pids)), copied_(std::move(copied)) {}

  const std::vector<pid_t>& pids() const { return pids_; }
  std::optional<double> copied() const { return copied_ ? copied_() : std::nullopt; }

 private:
  std::vector<pid_t> pids_;
  Copied copied_;
};

// Lets all peers carry out their order for window_ms (and a quarter of that before, as warm-up) and adds up what they
// did; a window in which nothing ended is repeated, four times as long, up to 20 s. Sets the orders' times. REQUIRES:
// as many orders as peers.
absl::StatusOr<Sample> MeasureWindow(std::span<const std::unique_ptr<Peer>> peers, std::vector<Order> orders,
                                     const ServerPids& server, int window_ms);

// What an operation counts for.
struct Scale {
  std::string unit;            // Of the rate: "GB/s".
  std::string cpu_unit;        // "s/GB".
  double amount = 0;           // Units per operation, 1e-9 * bytes or 1e-6 * keys.
  double bytes = 0;            // Payload bytes per operation.
  bool count_messages = true;  // Whether operations per second tell something.
};
Scale BytesScale(uint64_t bytes);
Scale KeysScale(uint64_t keys, uint64_t bytes);

using Measurement = std::function<absl::StatusOr<Sample>()>;

// Carries out all measurements in turns, options.runs times each; the samples of each, run by run. `name` is for
// messages.
absl::StatusOr<std::vector<std::vector<Sample>>> TakeTurns(const Options& options, const std::string& name,
                                                           std::span<const Measurement> measurements);

// Measures `limit` (may be empty) and `ours` in turns, options.runs times each, and makes a row of it.
absl::StatusOr<Row> MeasureInTurns(const Options& options, std::string bench, std::string name, const Scale& scale,
                                   const Measurement& ours, const Measurement& limit);

// The row that these runs give; `limits` is empty or pairs with `ours`. REQUIRES: `ours` is not empty.
Row MakeRow(std::string bench, std::string name, const Scale& scale, std::vector<Sample> ours,
            std::vector<Sample> limits);

}  // namespace lodestone::bench
