// One line of the benchmark's result. tools/bench/bench.py makes tables, comparisons and the cost model of such lines.
//
// Thread safety: pure functions and plain values.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace lodestone::bench {

// The metrics' keys; bench.py says what each means.
inline constexpr char kRate[] = "rate";
inline constexpr char kMessages[] = "kmsg_per_s";
inline constexpr char kP50[] = "p50_us";
inline constexpr char kP99[] = "p99_us";
inline constexpr char kP999[] = "p999_us";
inline constexpr char kClientCpu[] = "client_cpu";
inline constexpr char kServerCpu[] = "server_cpu";
inline constexpr char kLimitRate[] = "limit_rate";
inline constexpr char kLimitP50[] = "limit_p50_us";
inline constexpr char kLimitP99[] = "limit_p99_us";
inline constexpr char kLimitCpu[] = "limit_cpu";
inline constexpr char kRatio[] = "ratio";
inline constexpr char kCpuRatio[] = "cpu_ratio";
inline constexpr char kP50Ratio[] = "p50_ratio";
inline constexpr char kP99Ratio[] = "p99_ratio";
inline constexpr char kServerCpuRatio[] = "server_cpu_ratio";
inline constexpr char kCopies[] = "client_copies";
inline constexpr char kServerCopies[] = "server_copies";
inline constexpr char kMemory[] = "extra_mb";
inline constexpr char kMemoryRatio[] = "memory_ratio";
inline constexpr char kLeastShare[] = "least_share";
inline constexpr char kSlowestP99[] = "slowest_p99_us";
inline constexpr char kServerMemory[] = "server_mb";

struct Row {
  std::string bench;                                  // "dense".
  std::string name;                                   // "dense/push/1MiB/depth8/clients1"; unique in a report.
  std::string unit;                                   // Of the rates: "GB/s" (1e9 bytes), "Mkeys/s", "samples/s".
  std::string cpu_unit;                               // Of the CPU times: "s/GB"; empty if there are none.
  std::map<std::string, std::vector<double>> values;  // By metric: one value for each run.

  // Null if the row has no such metric.
  const std::vector<double>* Find(const std::string& metric) const;
};

// One line of JSON, without its end.
std::string ToJson(const Row& row);
// The line that a result begins with: {"machine": {…}}, what the machine was, in words, by name.
std::string ToJson(const std::map<std::string, std::string>& machine);

}  // namespace lodestone::bench
