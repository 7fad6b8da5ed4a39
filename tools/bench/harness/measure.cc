#include "tools/bench/harness/measure.h"

#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "tools/bench/harness/stats.h"

namespace lodestone::bench {
namespace {

// A percentile is told if so many operations make it up.
constexpr size_t kOperationsForP99 = 100;
constexpr size_t kOperationsForP999 = 1000;
constexpr int kWindowMsMax = 20'000;  // A longer window is not tried.

void SleepUntil(int64_t ns) {
  const timespec until{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

// CPU seconds so far, and when that was.
struct CpuReading {
  double clients = 0;
  double server = 0;
  int64_t at_ns = 0;
};

CpuReading ReadCpu(std::span<const std::unique_ptr<Peer>> peers, const ServerPids& server) {
  CpuReading reading;
  reading.at_ns = NowNs();
  for (const auto& peer : peers) reading.clients += CpuSeconds(peer->pid());
  for (const pid_t pid : server.pids()) reading.server += CpuSeconds(pid);
  return reading;
}

// The values of one run, by metric.
std::map<std::string, double> ValuesOf(const Scale& scale, Sample* run) {
  std::map<std::string, double> values;
  const double amount = run->operations * scale.amount;
  values[kRate] = amount / run->seconds;
  if (scale.count_messages) values[kMessages] = 1e-3 * run->operations / run->seconds;
  if (!scale.cpu_unit.empty() && amount > 0) {
    values[kClientCpu] = run->client_cpu_seconds / amount;
    values[kServerCpu] = run->server_cpu_seconds / amount;
  }
  if (run->bytes_copied > 0 && amount > 0) values[kCopies] = run->bytes_copied / (run->operations * scale.bytes);
  if (run->server_bytes_copied > 0 && amount > 0) {
    values[kServerCopies] = run->server_bytes_copied / (run->operations * scale.bytes);
  }
  if (run->clients > 1 && run->operations > 0) {
    values[kLeastShare] = run->least_operations * run->clients / run->operations;
    if (run->slowest_p99_us > 0) values[kSlowestP99] = run->slowest_p99_us;
  }
  const size_t count = run->latencies_us.size();
  if (count > 0) values[kP50] = Percentile(&run->latencies_us, 50);
  if (count >= kOperationsForP99) values[kP99] = Percentile(&run->latencies_us, 99);
  if (count >= kOperationsForP999) values[kP999] = Percentile(&run->latencies_us, 99.9);
  return values;
}

// Adds what the limit's run says of ours.
void AddLimit(const std::map<std::string, double>& limit, std::map<std::string, double>* values) {
  const auto divide = [&](const char* ratio, double ours, double theirs) {
    if (theirs > 0) (*values)[ratio] = ours / theirs;
  };
  (*values)[kLimitRate] = limit.at(kRate);
  divide(kRatio, values->at(kRate), limit.at(kRate));
  if (limit.count(kP50) > 0) {
    (*values)[kLimitP50] = limit.at(kP50);
    if (values->count(kP50) > 0) divide(kP50Ratio, values->at(kP50), limit.at(kP50));
  }
  if (limit.count(kP99) > 0) {
    (*values)[kLimitP99] = limit.at(kP99);
    if (values->count(kP99) > 0) divide(kP99Ratio, values->at(kP99), limit.at(kP99));
  }
  if (limit.count(kClientCpu) == 0 || values->count(kClientCpu) == 0) return;
  (*values)[kLimitCpu] = limit.at(kClientCpu) + limit.at(kServerCpu);
  divide(kCpuRatio, values->at(kClientCpu) + values->at(kServerCpu), values->at(kLimitCpu));
  divide(kServerCpuRatio, values->at(kServerCpu), limit.at(kServerCpu));
}

// Once, whatever comes of it.
absl::StatusOr<Sample> MeasureOnce(std::span<const std::unique_ptr<Peer>> peers, std::vector<Order>& orders,
                                   const ServerPids& server, int window_ms) {
  const int64_t window_ns = int64_t{window_ms} * 1'000'000;
  const std::optional<double> copied_before = server.copied();
  const int64_t start_ns = NowNs() + window_ns / 4;
  for (size_t i = 0; i < peers.size(); ++i) {
    orders[i].start_ns = start_ns;
    orders[i].end_ns = start_ns + window_ns;
    LODESTONE_RETURN_IF_ERROR(peers[i]->Send(orders[i]));
  }
  SleepUntil(start_ns);
  const CpuReading before = ReadCpu(peers, server);
  SleepUntil(start_ns + window_ns);
  const CpuReading after = ReadCpu(peers, server);
  // We may have been woken late: the CPU time is that of the window's length.
  const double share = static_cast<double>(window_ns) / static_cast<double>(after.at_ns - before.at_ns);
  Sample sample{.seconds = 1e-9 * static_cast<double>(window_ns),
                .client_cpu_seconds = (after.clients - before.clients) * share,
                .server_cpu_seconds = (after.server - before.server) * share,
                .latencies_us = {}};
  absl::Status status;
  double started = 0;
  bool each_has_p99 = true;
  for (const auto& peer : peers) {  // All are collected, so that the next window finds nobody busy.
    absl::StatusOr<Outcome> outcome = peer->Collect();
    if (!outcome.ok()) {
      if (status.ok()) status = outcome.status();
      continue;
    }
    const auto operations = static_cast<double>(outcome->operations);
    sample.operations += operations;
    sample.least_operations = sample.clients++ == 0 ? operations : std::min(sample.least_operations, operations);
    started += static_cast<double>(outcome->started);
    sample.bytes_copied += static_cast<double>(outcome->bytes_copied);
    sample.latencies_us.insert(sample.latencies_us.end(), outcome->latencies_us.begin(), outcome->latencies_us.end());
    each_has_p99 = each_has_p99 && outcome->latencies_us.size() >= kOperationsForP99;
    if (each_has_p99) {
      sample.slowest_p99_us = std::max(sample.slowest_p99_us, Percentile(&outcome->latencies_us, 99));
    }
  }
  if (!status.ok()) return status;
  if (!each_has_p99) sample.slowest_p99_us = 0;
  // The server's copies are those of all operations, the sample's those of a part of them.
  const std::optional<double> copied_after = server.copied();
  if (copied_before.has_value() && copied_after.has_value() && started > 0) {
    sample.server_bytes_copied = (*copied_after - *copied_before) * sample.operations / started;
  }
  return sample;
}

}  // namespace

absl::StatusOr<Sample> MeasureWindow(std::span<const std::unique_ptr<Peer>> peers, std::vector<Order> orders,
                                     const ServerPids& server, int window_ms) {
  LODESTONE_CHECK(peers.size() == orders.size());
  for (;; window_ms *= 4) {
    absl::StatusOr<Sample> sample = MeasureOnce(peers, orders, server, window_ms);
    if (!sample.ok() || sample->operations > 0 || window_ms > kWindowMsMax / 4) return sample;
  }
}

bool IsWanted(const Options& options, const std::string& name) {
  if (name.find(options.only) == std::string::npos) return false;
  if (options.deadline_ns == 0 || NowNs() < options.deadline_ns) return true;
  std::fprintf(stderr, "bench: no time left for %s\n", name.c_str());
  return false;
}

Scale BytesScale(uint64_t bytes) {
  return {"GB/s", "s/GB", 1e-9 * static_cast<double>(bytes), static_cast<double>(bytes)};
}

Scale KeysScale(uint64_t keys, uint64_t bytes) {
  return {"Mkeys/s", "s/Mkeys", 1e-6 * static_cast<double>(keys), static_cast<double>(bytes)};
}

absl::StatusOr<std::vector<std::vector<Sample>>> TakeTurns(const Options& options, const std::string& name,
                                                           std::span<const Measurement> measurements) {
  std::fprintf(stderr, "bench: %s\n", name.c_str());
  std::vector<std::vector<Sample>> samples(measurements.size());
  for (int run = 0; run < options.runs; ++run) {
    for (size_t i = 0; i < measurements.size(); ++i) {
      absl::StatusOr<Sample> sample = measurements[i]();
      if (!sample.ok()) return Annotate(sample.status(), name);
      if (sample->operations == 0) {
        return absl::DeadlineExceededError(
            absl::StrCat(name, ": no operation ended within ", sample->seconds, " s; a longer --window-ms may help"));
      }
      samples[i].push_back(*std::move(sample));
    }
  }
  return samples;
}

absl::StatusOr<Row> MeasureInTurns(const Options& options, std::string bench, std::string name, const Scale& scale,
                                   const Measurement& ours, const Measurement& limit) {
  std::vector<Measurement> measurements;
  if (limit) measurements.push_back(limit);
  measurements.push_back(ours);
  LODESTONE_ASSIGN_OR_RETURN(std::vector<std::vector<Sample>> samples, TakeTurns(options, name, measurements));
  return MakeRow(std::move(bench), std::move(name), scale, std::move(samples.back()),
                 limit ? std::move(samples.front()) : std::vector<Sample>());
}

Row MakeRow(std::string bench, std::string name, const Scale& scale, std::vector<Sample> ours,
            std::vector<Sample> limits) {
  LODESTONE_CHECK(!ours.empty() && (limits.empty() || limits.size() == ours.size()));
  std::map<std::string, std::vector<double>> values;
  for (size_t i = 0; i < ours.size(); ++i) {
    std::map<std::string, double> run = ValuesOf(scale, &ours[i]);
    if (!limits.empty()) AddLimit(ValuesOf(scale, &limits[i]), &run);
    for (const auto& [metric, value] : run) values[metric].push_back(value);
  }
  Row row{std::move(bench), std::move(name), scale.unit, scale.cpu_unit, {}};
  for (auto& [metric, of_runs] : values) {
    if (of_runs.size() == ours.size()) row.values[metric] = std::move(of_runs);
  }
  return row;
}

}  // namespace lodestone::bench
